"""Engines: the same chunks of work on one process, in shards, under torchrun, or on Ray.

plan.py     what a run will do: options, passes; and what must agree to go on with one
work.py     the chunks of one worker, each a file
finish.py   all chunks -> a run
direct.py   measure(model, batches): in this process, from Python
ray.py      actors that keep the model; the driver writes what they send
"""
