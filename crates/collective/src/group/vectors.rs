//! Exchanging and summing vectors of numbers, whose lengths all workers know.
//!
//! Unlike leaves, vectors are sent without a header and without being copied, and are summed in the memory in which
//! they arrive.

use super::early::early_range;
use super::schedule::GRAIN;
use super::wire::{Coding, Real};
use super::{GroupCall, SumOptions, exact, fast, raw};
use crate::Failure;
use bytes::Bytes;

impl GroupCall<'_> {
    /// Exchanges bytes between all workers. Returns `mine` of each worker, by rank. `expected` returns the number of
    /// bytes that a worker must send. `what` names the data in errors.
    ///
    /// # Errors
    /// - [`Failure::Blame`], on every worker: workers make different calls, or a worker has exited, is lost or times
    ///   out.
    /// - [`Failure::Record`]: a worker has sent a different number of bytes.
    pub fn all_gather_sized(
        &mut self,
        what: &str,
        mine: Bytes,
        expected: impl Fn(usize) -> usize,
    ) -> Result<Vec<Bytes>, Failure> {
        let all = self.subround(what, |_| mine.clone())?;
        self.insert_own(all, mine, expected)
    }

    /// Sends the bytes of all workers to worker `to`, which gets the result of
    /// [`all_gather_sized`](Self::all_gather_sized). Returns `None` on the other workers.
    ///
    /// # Errors
    /// Returns the errors of [`all_gather_sized`](Self::all_gather_sized).
    pub fn gather_to(
        &mut self,
        to: usize,
        what: &str,
        mine: Bytes,
        expected: impl Fn(usize) -> usize,
    ) -> Result<Option<Vec<Bytes>>, Failure> {
        let all = self.subround(what, |worker| if worker == to { mine.clone() } else { Bytes::new() })?;
        (self.world().worker() == to).then(|| self.insert_own(all, mine, expected)).transpose()
    }

    /// Sends `mine` to worker `to`, and returns the bytes that worker `from` sends to this one: `expected` bytes. Each
    /// worker must send to one other worker, and receive from one. Errors use `what` as the name of the data.
    ///
    /// # Errors
    /// Returns the errors of [`all_gather_sized`](Self::all_gather_sized).
    pub fn shift(
        &mut self,
        what: &str,
        (to, mine): (usize, Bytes),
        (from, expected): (usize, usize),
    ) -> Result<Bytes, Failure> {
        let all = self.subround(what, |worker| if worker == to { mine.clone() } else { Bytes::new() })?;
        let received = all.into_iter().nth(from).unwrap_or_default();
        raw::require_length(from, &received, expected)?;
        Ok(received)
    }

    /// Adds this worker's own bytes to the received ones, and checks that all lengths are those that `expected`
    /// returns.
    fn insert_own(
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

    /// Takes the vectors that workers have sent before this call. `call` must be the
    /// [`EarlySend::call`](super::EarlySend::call) of the senders. Call this after all workers have agreed on the call
    /// that follows the sending, or on a later one.
    ///
    /// Returns, for each worker including this one, [this worker's range](early_range) of each of that worker's
    /// vectors. Vectors come in sets of equal lengths: `sets` returns the number of sets of a worker, and `mine`
    /// contains those of this worker.
    ///
    /// # Errors
    /// - [`Failure::Blame`], on every worker: a vector has arrived changed.
    /// - [`Failure::Record`]: a vector is missing or has a different length.
    pub fn receive_early_ranges(
        &self,
        call: u64,
        mine: &[Bytes],
        sets: impl Fn(usize) -> usize,
    ) -> Result<Vec<Vec<Bytes>>, Failure> {
        let world = self.world();
        let piece = |vector: &Bytes| vector.slice(early_range(world, world.worker(), vector.len()));
        let pieces: Vec<_> = mine.iter().map(piece).collect();
        let each = pieces.len() / sets(world.worker()).max(1);
        let sizes: Vec<_> = pieces.iter().take(each).map(Bytes::len).collect();
        let mut all = self.receive_early(call, &sizes, sets)?;
        if let Some(own) = all.get_mut(world.worker()) {
            *own = pieces;
        }
        Ok(all)
    }

    /// Takes the pieces of vectors that workers have sent before this call. `call` must be the
    /// [`EarlySend::call`](super::EarlySend::call) of the senders. Returns the pieces of every other worker:
    /// `sets(worker)` sets of pieces of the given sizes. The entry of this worker is empty.
    ///
    /// # Errors
    /// Returns the errors of [`receive_early_ranges`](Self::receive_early_ranges).
    pub fn receive_early(
        &self,
        call: u64,
        sizes: &[usize],
        sets: impl Fn(usize) -> usize,
    ) -> Result<Vec<Vec<Bytes>>, Failure> {
        let (world, session) = (self.world(), self.session());
        let of = |worker| vec![Bytes::new(); sets(worker) * sizes.len()];
        let mut all: Vec<Vec<Bytes>> = (0..world.workers()).map(of).collect();
        for piece in session.early_receiver().take(session.group(), call) {
            // INV-104
            if let Some(changed) = piece.changed {
                return Err(self.fail_corrupted(changed.between(piece.from, world.worker())).into());
            }
            if let Some(place) = all.get_mut(piece.from).and_then(|all| all.get_mut(piece.part)) {
                *place = piece.body;
            }
        }
        for (worker, pieces) in all.iter_mut().enumerate() {
            if worker == world.worker() {
                pieces.clear();
            }
            let mut pieces = pieces.iter().zip(sizes.iter().cycle());
            pieces.try_for_each(|(piece, size)| raw::require_length(worker, piece, *size))?;
        }
        Ok(all)
    }

    /// Sends each worker its range of the vectors `mine`, in one round. Returns the ranges that all workers have sent
    /// to this one, like [`receive_early_ranges`](Self::receive_early_ranges).
    ///
    /// # Errors
    /// - [`Failure::Blame`], on every worker: workers make different calls, or a worker has exited, is lost or times
    ///   out.
    /// - [`Failure::Record`]: a worker has sent different lengths.
    pub fn all_to_all_ranges(
        &mut self,
        what: &str,
        mine: &[Bytes],
        sets: impl Fn(usize) -> usize,
    ) -> Result<Vec<Vec<Bytes>>, Failure> {
        let world = self.world();
        let piece =
            |worker: usize, part: usize| mine[part].slice(early_range(world, worker, mine[part].len()));
        let call = self.send_pieces(what, mine.len(), piece)?;
        self.receive_early_ranges(call, mine, sets)
    }

    /// Sends `piece(worker, number)` to every other worker, with a number for each of `sizes` in each of this worker's
    /// sets, in one round. Returns the pieces that the other workers have sent, of the same sizes, like
    /// [`receive_early`](Self::receive_early).
    ///
    /// # Errors
    /// Returns the errors of [`all_to_all_ranges`](Self::all_to_all_ranges).
    pub fn all_to_all(
        &mut self,
        what: &str,
        sizes: &[usize],
        sets: impl Fn(usize) -> usize,
        piece: impl Fn(usize, usize) -> Bytes,
    ) -> Result<Vec<Vec<Bytes>>, Failure> {
        let call = self.send_pieces(what, sets(self.world().worker()) * sizes.len(), piece)?;
        self.receive_early(call, sizes, sets)
    }

    /// Sends pieces, and waits until those of the other workers have arrived. Returns the `call` with which
    /// [`receive_early`](Self::receive_early) takes them.
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

    /// Sums the vectors of all workers, each multiplied by its weight, with options that must be the same on all
    /// workers. Each worker must contribute the same number of vectors, all of the same length. `weights` must contain
    /// a weight for every vector of every worker.
    ///
    /// Returns the sum as consecutive pieces. With any options, all workers get the same bits. The default options add
    /// the vectors in the fixed order of [`Order::Exact`](super::Order::Exact), by a reduce-scatter and an all-gather:
    /// each worker receives one range of every worker's vectors, sums it, and sends the sum to all.
    ///
    /// ```
    /// # use distribute_cluster::{Fingerprint, Operation, ReplicaStatus};
    /// # use distribute_collective::group::{GroupCall, Links, Order, SumOptions, Wire, local, numbers};
    /// # use std::{panic::Location, time::Duration};
    /// # let group = local::groups(Links::Memory, 1, 1)?.remove(0);
    /// # let session = group.open("doc", 1);
    /// # let call = Fingerprint::new(Operation::AllReduce, "float32[2]", Location::caller());
    /// let mut calling = GroupCall::new(&session, vec![ReplicaStatus::waiting(0, call)], Duration::from_secs(60));
    /// let mut vector = calling.buffers().take(8);
    /// vector.bytes_mut().copy_from_slice(&[1f32, 3.].map(f32::to_ne_bytes).concat());
    /// let options = SumOptions { order: Order::Fast, wire: Wire::Bf16, ..Default::default() };
    /// let sum = calling.all_reduce_vectors(&[vector.freeze()], &[0.5f32], &options)?.concat();
    /// assert_eq!(*numbers::<f32>(&sum), [0.5, 1.5]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// - [`Failure::Blame`], on every worker: the calls, the options or, in [`Order::Fast`](super::Order::Fast), the
    ///   lengths differ, or a worker has exited, is lost or times out.
    /// - [`Failure::Native`]: the library of the transport has failed.
    /// - [`Failure::Record`]: a worker has sent a different number of bytes, or vectors or weights have a wrong number
    ///   or length.
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
        // An empty vector is also a pack: its sum is a call that all make.
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

    /// Returns the size in bytes of each vector. Returns an error if the sizes differ, if they are not a multiple of
    /// the size of an element, or if there is not one weight for each vector of each worker.
    fn require_vectors<F>(&self, vectors: &[Bytes], weights: &[F]) -> Result<usize, Failure> {
        let size = vectors.first().map_or(0, Bytes::len);
        if weights.len() != vectors.len() * self.world().workers()
            || vectors.iter().any(|vector| vector.len() != size)
            || !size.is_multiple_of(size_of::<F>())
        {
            return Err(Failure::Record(
                "vectors of different lengths, or a different number of weights".into(),
            ));
        }
        Ok(size)
    }
}
