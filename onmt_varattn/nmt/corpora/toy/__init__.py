"""A toy German-English corpus with gold word alignments, drawn from a synchronous grammar.

The sentences are short; the phenomena are those that make alignment worth modelling:

- verbs at the end of German clauses (", weil er den hund sieht", "hat ... gesehen", "kann ... sehen");
- separable verbs, where the last word decides the translation ("macht ... auf", "macht ... zu", "macht");
- compounds, built freely from parts, that become two English words ("apfelbaum", "apple tree");
- articles and endings that depend on a later word ("der/den/dem", "a/an");
- free choices that show in the target only: ambiguous nouns ("schloss" is a castle or a lock), the
  order of coordinated nouns, the place of an adverb of time, "gives the king a book" or "a book to the
  king". A prior over alignments cannot predict these, a posterior that has read the target can.

No source sentence occurs twice, neither within a split nor across splits. Every word has at least
one link except the German comma, which has no English counterpart.
"""
