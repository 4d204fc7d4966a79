"""The processes of one training job: each is a rank. The first one leads, and the others do what it announces.

agreement.py   what a rank asks of the job; a job of one process is the identity
group.py       the same over processes that PyTorch has connected
environment.py how a process knows which rank it is
"""
