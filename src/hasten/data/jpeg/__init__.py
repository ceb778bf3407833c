"""JPEG files decoded by kernels of our own, to the very pixels of libjpeg-turbo, and made smaller on the way.

Decoding is what holds a training from JPEG files back, and most of it is reading one Huffman code after another: each
begins where the one before ends, so a core waits. Libraries decode a picture whole before anybody makes it smaller, write
it to memory three times, and wait at every code for a value that nobody needs yet. Here

    header.py    says what a file is made of, and refuses what is rarely met; pure Python
    tables.py    makes a table of each Huffman code, kept while files have the same
    codes.py     reads the codes of a block, its values beside the chain of codes, and has it transformed at once
    transform.py makes pixels of a block
    pixels.py    goes through the rows of a picture
    colours.py   enlarges their colours, converts them, and takes the mean over two by two, in registers
    vectors.py   what these are built of that Numba has no words for
    kernel.py    puts them together
    decode.py    has files decoded so, once a process decodes so much that loading the kernel pays

What is read: baseline files of 8 bits a colour, YCbCr with the colours at half the size (4:2:0), without restart markers:
what cameras of phones and most programs write. What is not, anything else and whatever is damaged, libjpeg-turbo decodes.
"""
