//! Vectors of numbers whose lengths all workers know: exchanged whole, or summed.
//!
//! Unlike leaves, they are sent without a head, from where they lie, and are added up from where they arrive.

use super::early::early_range;
use super::schedule::GRAIN;
use super::wire::{Coding, Real};
use super::{GroupCall, SumOptions, exact, fast, raw};
use crate::Failure;
use bytes::Bytes;

impl GroupCall<'_> {
    /// Gathers the bytes of all workers, by worker. `expected` gives the size of each, and `what` names the data in
    /// errors.
    ///
    /// # Errors
    /// - [`Failure`], on every worker: a worker is lost or times out.
    /// - [`Failure::Record`]: a worker has sent another number of bytes.
    pub fn all_gather_sized(
        &mut self,
        what: &str,
        mine: Bytes,
        expected: impl Fn(usize) -> usize,
    ) -> Result<Vec<Bytes>, Failure> {
        let all = self.subround(what, |_| mine.clone())?;
        self.with_own(all, mine, expected)
    }

    /// Gathers the bytes of all workers on worker `to`, as [`all_gather_sized`](Self::all_gather_sized) does on all;
    /// the others get nothing.
    ///
    /// # Errors
    /// The errors of [`all_gather_sized`](Self::all_gather_sized).
    pub fn gather_to(
        &mut self,
        to: usize,
        what: &str,
        mine: Bytes,
        expected: impl Fn(usize) -> usize,
    ) -> Result<Option<Vec<Bytes>>, Failure> {
        let all = self.subround(what, |worker| if worker == to { mine.clone() } else { Bytes::new() })?;
        (self.world().worker() == to).then(|| self.with_own(all, mine, expected)).transpose()
    }

    /// Returns the bytes of all workers, this one's own included, if each has the size that `expected` gives.
    fn with_own(
        &self,
        mut all: Vec<Bytes>,
        mine: Bytes,
        expected: impl Fn(usize) -> usize,
    ) -> Result<Vec<Bytes>, Failure> {
        if let Some(own) = all.get_mut(self.world().worker()) {
            *own = mine;
        }
        for (worker, bytes) in all.iter().enumerate() {
            raw::require_length(worker, bytes, expected(worker))?;
        }
        Ok(all)
    }

    /// Receives what was sent to this worker before the call of this number: for each worker its range of each vector,
    /// this worker's own included. All have sent the same number of vectors, of the lengths of `mine`. To be called
    /// when all have agreed on the call that was made after that, or on a later one.
    ///
    /// # Errors
    /// [`Failure::Record`] if something is missing or has another length.
    pub fn receive_early_ranges(&self, call: u64, mine: &[Bytes]) -> Result<Vec<Vec<Bytes>>, Failure> {
        let world = self.world();
        let piece = |vector: &Bytes| vector.slice(early_range(world, world.worker(), vector.len()));
        let pieces: Vec<_> = mine.iter().map(piece).collect();
        let sizes: Vec<_> = pieces.iter().map(Bytes::len).collect();
        let mut all = self.receive_early(call, &sizes)?;
        if let Some(own) = all.get_mut(world.worker()) {
            *own = pieces;
        }
        Ok(all)
    }

    /// Receives what was sent to this worker before the call of this number: for each other worker pieces of these
    /// sizes. For this worker there are none.
    ///
    /// # Errors
    /// The errors of [`receive_early_ranges`](Self::receive_early_ranges).
    pub fn receive_early(&self, call: u64, sizes: &[usize]) -> Result<Vec<Vec<Bytes>>, Failure> {
        let (world, session) = (self.world(), self.session());
        let mut all = vec![vec![Bytes::new(); sizes.len()]; world.workers()];
        for piece in session.received().take(session.group(), call) {
            if let Some(place) = all.get_mut(piece.from).and_then(|all| all.get_mut(piece.part)) {
                *place = piece.body;
            }
        }
        for (worker, pieces) in all.iter_mut().enumerate() {
            if worker == world.worker() {
                pieces.clear();
            }
            let mut pieces = pieces.iter().zip(sizes);
            pieces.try_for_each(|(piece, size)| raw::require_length(worker, piece, *size))?;
        }
        Ok(all)
    }

    /// Sends each worker its range of these vectors, in one round, and returns what all have sent to this one, as
    /// [`receive_early_ranges`](Self::receive_early_ranges) does.
    ///
    /// # Errors
    /// [`Failure`] on every worker; [`Failure::Record`] if a worker has sent other lengths.
    pub fn all_to_all_ranges(&mut self, what: &str, mine: &[Bytes]) -> Result<Vec<Vec<Bytes>>, Failure> {
        let world = self.world();
        let piece =
            |worker: usize, part: usize| mine[part].slice(early_range(world, worker, mine[part].len()));
        let call = self.send_pieces(what, mine.len(), piece)?;
        self.receive_early_ranges(call, mine)
    }

    /// Sends each other worker the pieces `piece(worker, number)`, one for each of `sizes`, in one round. Returns what
    /// they have sent, of these sizes, as [`receive_early`](Self::receive_early) does.
    ///
    /// # Errors
    /// The errors of [`all_to_all_ranges`](Self::all_to_all_ranges).
    pub fn all_to_all(
        &mut self,
        what: &str,
        sizes: &[usize],
        piece: impl Fn(usize, usize) -> Bytes,
    ) -> Result<Vec<Vec<Bytes>>, Failure> {
        let call = self.send_pieces(what, sizes.len(), piece)?;
        self.receive_early(call, sizes)
    }

    /// Sends pieces, and waits until those of the others have arrived. Returns the call before which they were sent.
    fn send_pieces(
        &mut self,
        what: &str,
        count: usize,
        piece: impl Fn(usize, usize) -> Bytes,
    ) -> Result<u64, Failure> {
        let early = self.session().early_send();
        for part in 0..count {
            early.send_far_pieces(part, |worker| piece(worker, part));
            early.send_near_pieces(part, |worker| piece(worker, part));
        }
        self.barrier(what)?;
        Ok(early.call())
    }

    /// Sums the vectors of all workers, each multiplied by its weight, by options that are the same on all workers.
    /// Each worker contributes the same number of vectors, all of one length; `weights` are those of all workers'
    /// vectors.
    ///
    /// Returns the sum in pieces, one after another. All workers get the same bits, whatever the options. With the
    /// default ones, which are the one order of sums, it is a reduce-scatter and an all-gather: each worker receives
    /// its range of all vectors, folds it, and sends the sum to all.
    ///
    /// ```
    /// # use distribute_cluster::{Fingerprint, Operation, Standing};
    /// # use distribute_collective::group::{GroupCall, Links, Order, SumOptions, Wire, local, numbers};
    /// # use std::{panic::Location, time::Duration};
    /// # let group = local::groups(Links::Memory, 1, 1)?.remove(0);
    /// # let session = group.open("doc", 1);
    /// # let call = Fingerprint::new(Operation::AllReduce, "float32[2]", Location::caller());
    /// let mut calling = GroupCall::new(&session, vec![Standing::waiting(0, call)], Duration::from_secs(60));
    /// let mut vector = calling.buffers().take(8);
    /// vector.bytes_mut().copy_from_slice(&[1f32, 3.].map(f32::to_ne_bytes).concat());
    /// let options = SumOptions { order: Order::Fast, wire: Wire::Bf16, ..Default::default() };
    /// let sum = calling.all_reduce_vectors(&[vector.freeze()], &[0.5f32], &options)?.concat();
    /// assert_eq!(*numbers::<f32>(&sum), [0.5, 1.5]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// - [`Failure`] on every worker; [`Failure::Blame`] if options, or lengths in [`Order::Fast`](super::Order::Fast),
    ///   differ.
    /// - [`Failure::Record`] if a worker has sent another number of bytes, or vectors or weights have another number or
    ///   length.
    pub fn all_reduce_vectors<F: Real>(
        &mut self,
        vectors: &[Bytes],
        weights: &[F],
        options: &SumOptions,
    ) -> Result<Vec<Bytes>, Failure> {
        let size = self.require_vectors(vectors, weights)?;
        let coding = Coding::of(options.wire);
        let each = match options.bytes_per_pack {
            0 => size.max(1),
            bytes => (bytes / size_of::<F>() / GRAIN).max(1) * GRAIN * size_of::<F>(),
        };
        let mut sums = Vec::new();
        // An empty vector is a pack, too: its sum is a call that all make.
        for start in (0..size.max(1)).step_by(each) {
            let pack: Vec<_> =
                vectors.iter().map(|all| all.slice(start..size.min(start.saturating_add(each)))).collect();
            let bytes = pack.first().map_or(0, Bytes::len);
            sums.extend(match options.order.algorithm(bytes, self.world().workers()) {
                Some(algorithm) => fast::sum(self, &pack, weights, algorithm, &coding, options)?,
                None => exact::sum(self, &pack, weights, &coding, options)?,
            });
        }
        Ok(sums)
    }

    /// Returns the bytes of each vector, if each is as long as the others, and has a weight.
    fn require_vectors<F>(&self, vectors: &[Bytes], weights: &[F]) -> Result<usize, Failure> {
        let size = vectors.first().map_or(0, Bytes::len);
        if weights.len() != vectors.len() * self.world().workers()
            || vectors.iter().any(|vector| vector.len() != size)
            || !size.is_multiple_of(size_of::<F>())
        {
            return Err(Failure::Record("vectors of different lengths, or without a weight each".into()));
        }
        Ok(size)
    }
}
