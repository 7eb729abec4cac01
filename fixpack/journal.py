"""The name of the journal, apart from the code that writes it: a confirm run only looks whether there is one."""

JOURNAL = ".fixpack-journal"
