//! What a worker does wrong: told on all workers, with one text.
