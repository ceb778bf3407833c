"""From what people have to a store: in parallel, resumable, in constant memory, bad records set aside."""
