"""Names and paths become models and batches: what a measurement runs, and what it runs on.

errors.py         SourceError, which everything here raises; optional packages
models.py         load_model: a name becomes a Source
source.py         Source: the model, the part of it to run, what prepares its inputs, what identifies it
checkpoints.py    transformers folders, the demo models and .gguf files
vision_models.py  timm and open_clip
functions.py      module.py:function
hub.py            a repository of the hub becomes a local folder
batches.py        batches: data becomes batches for a Source
batch.py          Batch: what is passed to a model, and which of its tokens count
text.py           windows and batches of tokens; the baseline of shuffled tokens
documents.py      data becomes documents, read in pieces
images.py         pictures, read or generated
speech.py         sounds, read or generated
resampling.py     from one sampling rate to another
provenance.py     what the data was, and its hash
files.py          the files of a folder in their one order, and their hash

Nothing here is imported before it is needed: `from outward.sources.models import load_model`.
"""
