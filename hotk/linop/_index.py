"""`Index`, exported here as well: users of operators know it from `A.index`."""

from hotk._dense import Index as Index
