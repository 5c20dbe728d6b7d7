# finds: nothing
