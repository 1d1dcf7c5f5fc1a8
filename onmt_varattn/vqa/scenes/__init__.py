"""Small scenes of coloured shapes, with questions, in the file formats of VQA 2.0 and bottom-up attention.

They are made to tell kinds of attention apart. A third of the questions or more hesitate between two
boxes until the answer is seen, and features are sums over attributes: the mean of a red star and a blue
circle is that of a blue star and a red circle.
"""

from onmt_varattn.vqa.scenes.files import Settings, summary, write_scenes

__all__ = ["Settings", "summary", "write_scenes"]
