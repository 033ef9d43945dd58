"""The colours of every picture, chart and page.

They are the colours of Okabe and Ito, which people with any colour vision can distinguish, plus
greys, brown and indigo. A sparse run is blue and a dense run is vermilion everywhere.
`page/style.css` of the server repeats some of them for light pages; a test compares the values.
"""

BLUE, VERMILION, GREEN, ORANGE = "#0072B2", "#D55E00", "#009E73", "#E69F00"
PURPLE, SKY, YELLOW, GREY, BLACK = "#CC79A7", "#56B4E9", "#F0E442", "#7F7F7F", "#000000"
LIGHT_GREY, BROWN, INDIGO = "#CCCCCC", "#8C564B", "#332288"

SSFL, DENSE = BLUE, VERMILION
TRAINING, TRANSFER, WAITING = BLUE, ORANGE, LIGHT_GREY  # parts of a client's time in a round
CHOSEN, OTHERS = BLUE, "#A9BCCB"  # the bar of the run's setting, and the bars of alternatives
CATEGORIES = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY, YELLOW, GREY, BROWN, INDIGO)
