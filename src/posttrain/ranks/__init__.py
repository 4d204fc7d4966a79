"""The processes of one training job: each is a rank. The first rank leads, and the others do what it announces.

agreement.py   the communication between ranks as protocols; with one process every function returns its input
group.py       the implementation over processes that PyTorch has connected
environment.py how a process knows which rank it is
"""
