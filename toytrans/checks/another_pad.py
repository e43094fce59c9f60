"""Whether the source has another pad than the one that is known."""

import torch

from toytrans.checks.asked import Asked
from toytrans.checks.model import NoAnswer

MOST_IDS = 200


def another_source_pad(asked: Asked) -> int | None:
    """The one id that acts as a pad behind a source where the pad's id does not."""
    facts = asked.facts
    known = facts.source_pad_id is not None or not facts.masks_from_ids
    if known or not facts.has_source or asked.logits_constant:
        return None
    row = int(asked.real_source.sum(1).argmax())
    special = {facts.start_id, facts.eos_id} - {facts.pad_id}
    size = min(facts.source_size or facts.vocabulary_size, MOST_IDS)
    ids = torch.tensor([i for i in range(size) if i not in special])
    src = asked.src[row, asked.real_source[row]].expand(len(ids), -1)
    tgt_in = asked.tgt_in[row, asked.real[row]].expand(len(ids), -1)
    longer = torch.cat((src, ids[:, None].expand(-1, 2)), 1)
    try:
        moved = asked.moved(asked.ask(longer, tgt_in), asked.ask(src, tgt_in)).amax(1)
    except NoAnswer:
        return None
    unseen = ids[moved <= asked.tolerance].tolist()
    return unseen[0] if len(unseen) == 1 and unseen != [facts.pad_id] else None
