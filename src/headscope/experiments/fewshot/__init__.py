"""The few-shot study: crossword clues after a few examples.

`prompt` builds the prompt and labels its tokens, `likelihood` scores reference clues by the number of shots, `measures`
says where attention goes, `writing` what the model writes, `states` which states of the model are compared; `tables`
and `figures` are what is shown, `sentences` what is said.
"""
