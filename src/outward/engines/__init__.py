"""Engines: the same chunks of work on one process, in shards, under torchrun, or on Ray.

plan.py         what a run will do: options, passes; and what must agree to go on with one
work.py         the chunks of one worker, each a file
kept.py         those files, and which model they are of
finish.py       all chunks -> a run
direct.py       measure(model, batches): in this process, from Python
group.py        which share of the work a process has
ray.py          actors that keep the model; the driver writes what they send
watch.py        watch(model, batches): the same batches again and again while a model is trained
trainer.py      the same for transformers' Trainer
undisturbed.py  a look at a model in training that leaves no trace
steps.py        the steps of a watched training on disk, and the run of them
"""
