//! Who owns a queue: the lease, and the fence that every write to the queue's documents passes.
