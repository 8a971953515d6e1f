#!/bin/sh
cd /home/user/intervals && sed -i 's/merged\[-1\] = (merged\[-1\]\[0\], end)/merged[-1] = (merged[-1][0], max(end, merged[-1][1]))/' intervals.py
