"""Small scenes of coloured shapes, with questions, in the file formats of VQA 2.0 and bottom-up attention.

They distinguish attention objectives: at least a third of the questions leave two boxes equally likely
until the answer is known, and features are sums over attributes, so that the mean of a red star and a blue
circle is the mean of a blue star and a red circle.
"""

from onmt_varattn.vqa.scenes.files import SceneSettings, summary, write_scenes

__all__ = ["SceneSettings", "summary", "write_scenes"]
