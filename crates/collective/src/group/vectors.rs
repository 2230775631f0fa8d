//! Vectors of numbers whose lengths all workers know: exchanged whole, or summed.
//!
//! Unlike leaves, they are sent without a head, from where they lie, and are added up from where they arrive.

use super::ahead::part_of;
use super::range::GRAIN;
use super::wire::{Coding, Real};
use super::{Calling, SumOptions, exact, fast, raw};
use crate::Failure;
use bytemuck::Pod;
use bytes::Bytes;
use distribute_tensor::kernel::Scale;

impl Calling<'_> {
    /// Sends every other worker these bytes, and gives what all have sent, by worker. All send equally many. `what` says in
    /// errors what is exchanged.
    ///
    /// # Errors
    /// [`Failure`] on every worker; [`Failure::Record`] where a worker has sent another number of bytes.
    pub fn exchange(&mut self, what: &str, mine: Bytes) -> Result<Vec<Bytes>, Failure> {
        let expected = mine.len();
        self.exchange_all(what, mine, |_| expected)
    }

    /// Like [`exchange`](Self::exchange), where each worker sends as many bytes as `expected` says.
    ///
    /// # Errors
    /// Those of [`exchange`](Self::exchange).
    pub fn exchange_all(
        &mut self,
        what: &str,
        mine: Bytes,
        expected: impl Fn(usize) -> usize,
    ) -> Result<Vec<Bytes>, Failure> {
        let all = self.part(what, |_| mine.clone())?;
        self.with_own(all, mine, expected)
    }

    /// Sends one worker these bytes, and gives it what all have sent, by worker, each as many bytes as `expected` says; the others
    /// get nothing.
    ///
    /// # Errors
    /// Those of [`exchange`](Self::exchange).
    pub fn gather_to(
        &mut self,
        to: usize,
        what: &str,
        mine: Bytes,
        expected: impl Fn(usize) -> usize,
    ) -> Result<Option<Vec<Bytes>>, Failure> {
        let all = self.part(what, |worker| if worker == to { mine.clone() } else { Bytes::new() })?;
        (self.world().worker() == to).then(|| self.with_own(all, mine, expected)).transpose()
    }

    /// What all have sent, with this worker's own among it, if each is as long as `expected` says.
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

    /// What has been sent to this worker ahead of the call of this number: for each worker what it gets of each vector, its own
    /// included. All have sent as many vectors, of the same lengths as `mine`. To be asked when all have agreed on the call
    /// that was made after that, or on a later one.
    ///
    /// # Errors
    /// [`Failure::Record`] where something is missing or of another length.
    pub fn sent_ahead(&self, call: u64, mine: &[Bytes]) -> Result<Vec<Vec<Bytes>>, Failure> {
        let world = self.world();
        let piece = |vector: &Bytes| vector.slice(part_of(world, world.worker(), vector.len()));
        let pieces: Vec<_> = mine.iter().map(piece).collect();
        let sizes: Vec<_> = pieces.iter().map(Bytes::len).collect();
        let mut all = self.pieces_ahead(call, &sizes)?;
        if let Some(own) = all.get_mut(world.worker()) {
            *own = pieces;
        }
        Ok(all)
    }

    /// Like [`sent_ahead`](Self::sent_ahead), where each other worker has sent pieces of these sizes to this one; of this one there
    /// are none.
    ///
    /// # Errors
    /// Those of [`sent_ahead`](Self::sent_ahead).
    pub fn pieces_ahead(&self, call: u64, sizes: &[usize]) -> Result<Vec<Vec<Bytes>>, Failure> {
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

    /// Sends the others these vectors, and gives what they have sent: [`sent_ahead`](Self::sent_ahead), in one round.
    ///
    /// # Errors
    /// [`Failure`] on every worker; [`Failure::Record`] where a worker has sent other lengths.
    pub fn exchange_parts(&mut self, what: &str, mine: &[Bytes]) -> Result<Vec<Vec<Bytes>>, Failure> {
        let world = self.world();
        let piece = |worker: usize, part: usize| mine[part].slice(part_of(world, worker, mine[part].len()));
        let call = self.send_pieces(what, mine.len(), piece)?;
        self.sent_ahead(call, mine)
    }

    /// Sends each other worker as many pieces as there are `sizes`, `piece(worker, number)`, and gives what they have sent, of
    /// these sizes: [`pieces_ahead`](Self::pieces_ahead), in one round.
    ///
    /// # Errors
    /// Those of [`exchange_parts`](Self::exchange_parts).
    pub fn exchange_pieces(
        &mut self,
        what: &str,
        sizes: &[usize],
        piece: impl Fn(usize, usize) -> Bytes,
    ) -> Result<Vec<Vec<Bytes>>, Failure> {
        let call = self.send_pieces(what, sizes.len(), piece)?;
        self.pieces_ahead(call, sizes)
    }

    /// Sends pieces, and waits until those of the others are there. Gives the call ahead of which they were sent.
    fn send_pieces(
        &mut self,
        what: &str,
        count: usize,
        piece: impl Fn(usize, usize) -> Bytes,
    ) -> Result<u64, Failure> {
        let ahead = self.session().ahead();
        for part in 0..count {
            ahead.send_far_pieces(part, |worker| piece(worker, part));
            ahead.send_near_pieces(part, |worker| piece(worker, part));
        }
        self.everybodys(what, Bytes::new())?;
        Ok(ahead.call())
    }

    /// The sum of the vectors of all workers, each multiplied by its weight, in the one order of sums. Each worker brings the
    /// same number of vectors, all of one length; `weights` are those of all workers' vectors.
    ///
    /// Reduce-scatter and all-gather: each worker receives its range of all vectors, folds it, and sends the sum to all. Gives
    /// the sums of all ranges, one after another.
    ///
    /// # Errors
    /// [`Failure`] on every worker; [`Failure::Record`] where a worker has sent another number of bytes, and where vectors or
    /// weights are not as many or long as they have to be.
    pub fn sum<F: Scale + Pod>(&mut self, vectors: &[Bytes], weights: &[F]) -> Result<Vec<Bytes>, Failure> {
        self.require_vectors(vectors, weights)?;
        exact::sum(self, vectors, weights, &Coding::FULL, &SumOptions::default())
    }

    /// Like [`sum`](Self::sum), by options that are the same on all workers. With the default ones it is the same.
    ///
    /// Gives the sum in pieces, one after another. All workers get the same bits, whatever the options.
    ///
    /// ```
    /// # use distribute_cluster::{Fingerprint, Operation, Standing};
    /// # use distribute_collective::group::{Calling, Links, Order, SumOptions, Wire, local, numbers};
    /// # use std::{panic::Location, time::Duration};
    /// # let group = local::groups(Links::Memory, 1, 1)?.remove(0);
    /// # let session = group.open("doc", 1);
    /// # let call = Fingerprint::new(Operation::AllReduce, "float32[2]", Location::caller());
    /// let mut calling = Calling::new(&session, vec![Standing::waiting(0, call)], Duration::from_secs(60));
    /// let mut vector = calling.buffers().take(8);
    /// vector.bytes_mut().copy_from_slice(&[1f32, 3.].map(f32::to_ne_bytes).concat());
    /// let options = SumOptions { order: Order::Fast, wire: Wire::Bf16, ..Default::default() };
    /// let sum = calling.sum_with(&[vector.freeze()], &[0.5f32], &options)?.concat();
    /// assert_eq!(*numbers::<f32>(&sum), [0.5, 1.5]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`sum`](Self::sum); [`Failure::Blame`] on every worker where options, or lengths in
    /// [`Order::Fast`](super::Order::Fast), differ.
    pub fn sum_with<F: Real>(
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

    /// The bytes of each vector, if each is as long as the others, and has a weight.
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
