"""A little text of our own, for runs that have no data: an encyclopedia's, and letters that are none."""

ENCYCLOPEDIA = """
A lighthouse is a tower with a bright lamp at its top that warns ships of rocks and shallow water. The first ones were
open fires on hills; later towers were built of stone, and mirrors and lenses gathered the light into a beam that could
be seen from far away. Most lighthouses now work without a keeper.

Rice is the seed of a grass that is grown in flooded fields in many warm countries. It has been the main food of large
parts of Asia for thousands of years. Young plants are raised in beds and then set out by hand or by machine. The
water keeps down weeds and protects the roots from cold nights.

A glacier is a body of ice that forms where more snow falls in winter than melts in summer. Under its own weight the
snow becomes ice and begins to flow slowly down the valley. Glaciers carve the rock below them, carry stones to the
plains, and leave long lakes behind when they retreat.

The violin is a string instrument with four strings that is played with a bow. Its form was found in the north of
Italy in the sixteenth century and has changed little since then. The body is made of spruce and maple, and a thin
post of wood inside it carries the sound from the front to the back.

Copper is a soft red metal that conducts heat and electricity well. It was among the first metals that people worked,
because it is found pure in some places and melts in a simple furnace. Mixed with tin it becomes bronze, which is much
harder and gave its name to an age.

A canal is a waterway that was dug by people for boats or for watering fields. Where the land rises, boats pass
through locks, chambers with gates at both ends in which the level of the water is raised or lowered. Before the
railway, canals carried most of the heavy goods between cities.

The owl is a bird that hunts at night. Its eyes face forward and cannot be turned, so that it must move its whole head
to look around. Soft feathers make its flight almost silent, and one ear sits higher than the other, which tells the
bird exactly where a mouse is moving under the leaves.
"""

LETTERS = (
    "Hey Sam!! Did you grab my blue jacket from the hallway? I can't find it anywhere & I'm already late...",
    "Dear Ms. Okafor, thanks so much for the jam! We ate it all in one week. Please, please send us more?",
    "OK so I missed the bus (again), lost my keys, and it's only 9:15. Best Monday ever! How's yours going?",
    "Mum, don't worry, I've eaten. Twice! The flat's tiny but the view is lovely. Call you on Sunday, promise.",
    "Quick question: are you bringing the kids on Saturday, or just yourself? I need to know about the cake!",
    "Hi Jo, sorry I yelled about the bike. Wasn't your fault. Drinks are on me this Friday, if you'll come?",
    "To whoever keeps taking my lunch: it's labelled!!! Get your own sandwich. Yours, a very hungry colleague.",
    "Darling, I've fed the cat, watered the plants and paid the plumber. Come home soon, it's dull without you.",
    "Guess what? We got the house! I screamed so loudly that the neighbours came over. Moving day's in March.",
    "Hello Mr. Brandt, your parcel's at my place, no. 14. I'm in after six, just ring twice (bell's broken).",
    "Yo, are we still on for football tonight? Pitch looks soaked. I'd rather do pizza, to be honest with you!",
    "Dear Grandpa, thank you for the watch!!! It's way too nice for school, so I'm keeping it in my drawer.",
)
