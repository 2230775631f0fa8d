//! The exchange of vectors with error feedback: of dense gradients or, after local steps, of what they have changed.
//!
//! The contribution of a replica to a variable is its gradient times its weight in the sum, plus the replica's
//! residual. Each worker sends the compressed contributions of its replicas, the *packets*, to all others. Each worker
//! decodes the packets of all replicas and adds them up in the same order, so the sum is bit-identical for any
//! distribution of the replicas over workers. A single worker does the same without sending. After local steps, each
//! worker is like one replica.
//!
//! | round | all codecs but one | low rank |
//! |---|---|---|
//! | 1 | packets | the factors `P` of each replica |
//! | 2 | | the factors `Q` of each replica |
//!
//! The lengths of all messages follow from the headers.

// - INV-7, INV-27: here as well. Test: `multi_worker/compression.rs`.

use crate::feedback::Residual;
use crate::header::{GradientKind, StepHeader};
use crate::parameters::Parameters;
use crate::reduce::Weighted;
use crate::sync::Threads;
use bytes::Bytes;
use candle_core::{Device, Tensor, Var};
use distribute_base::internal::{Dense, ReplicaGradient, lock};
use distribute_base::{Error, Result};
use distribute_collective::group::{GroupCall, numbers};
use distribute_core::internal::failure;
use distribute_tensor::compression::low_rank::Shape;
use distribute_tensor::compression::{CHUNK, Codec, RangeCodec};
use distribute_tensor::kernel::fold_scaled;
use std::ops::Range;
use std::sync::Mutex;

/// The number of elements that a thread decodes and adds up at a time.
const RANGE: usize = 16 * CHUNK;

/// Returns the variables whose gradients have error feedback in a step, in ascending order. `kinds` are those of the
/// sums.
pub(crate) fn variables(parameters: &Parameters, kinds: &[GradientKind]) -> Vec<usize> {
    let all = parameters.with_feedback();
    all.filter(|number| kinds.get(*number) == Some(&GradientKind::Dense)).collect()
}

/// Exchanges the gradients that have error feedback. Returns the sum over all replicas for each of these variables;
/// with a sharded state, only the elements that this worker updates.
///
/// # Errors
/// Returns the errors of [`Exchange::sums`], and an error on this worker if its own gradients cannot be read.
pub(crate) fn exchange(
    calling: Option<&mut GroupCall<'_>>,
    parameters: &Parameters,
    headers: &[&StepHeader],
    mine: &[Weighted<'_>],
    step: u64,
    threads: &Threads<'_>,
) -> Result<Vec<(usize, ReplicaGradient)>> {
    let variables = variables(parameters, &StepHeader::kinds_of_sums(headers));
    let tasks = mine.iter().enumerate().flat_map(|(replica, (weight, gradients))| {
        let one = move |variable: &usize| Some((replica, *variable, *weight, gradients[*variable].as_ref()?));
        variables.iter().filter_map(one)
    });
    let contributions = contributions(threads, tasks.collect(), |(replica, variable, weight, gradient)| {
        let (_, var) = &parameters.variables[variable];
        with_dense(gradient, var, |gradient| {
            Contribution::new(parameters, (replica, variable), weight as f32, gradient.iter().copied())
        })
    })?;
    // A replica without a gradient keeps its residual (INV-9).
    let contributes =
        |replica: usize, variable: usize| headers[replica].kinds[variable] != GradientKind::Missing;
    let senders =
        Senders { operation: "minimize", each: mine.len(), all: headers.len(), contributes: &contributes };
    let sums = Exchange::new(calling, parameters, senders, threads).sums(&variables, contributions, step)?;
    sums.into_iter().map(|(number, sum)| Ok((number, gradient(parameters, number, sum)?))).collect()
}

/// Converts the sum of a variable's gradients to a gradient; with a sharded state, only the elements that this worker
/// updates.
fn gradient(parameters: &Parameters, variable: usize, sum: Vec<f32>) -> Result<ReplicaGradient> {
    let tensor = match &parameters.partition {
        Some(partition) => {
            let own: Range<usize> = partition.own_range(variable);
            let own = sum.get(own).unwrap_or_default();
            Tensor::from_vec(own.to_vec(), own.len(), &Device::Cpu)?
        }
        None => Tensor::from_vec(sum, parameters.variables[variable].1.shape(), &Device::Cpu)?,
    };
    Ok(ReplicaGradient::Dense(Dense::Host(tensor)))
}

/// Returns the codec of a variable whose packets consist of independent ranges; `None` for other codecs.
fn range_codec(parameters: &Parameters, variable: usize) -> Option<RangeCodec> {
    match parameters.codecs[variable]? {
        Codec::EightBits => Some(RangeCodec::EightBits),
        Codec::TopK => Some(RangeCodec::TopK),
        Codec::LowRank(_) => None,
    }
}

/// Returns the shape of a variable whose gradient is sent as two factors; `None` for other codecs.
fn shape(parameters: &Parameters, variable: usize) -> Option<Shape> {
    match parameters.codecs[variable]? {
        Codec::LowRank(shape) => Some(shape),
        _ => None,
    }
}

/// The contribution of a replica of this worker to the sum of a variable's gradients.
pub(crate) struct Contribution {
    /// The index of the replica on this worker.
    replica: usize,
    variable: usize,
    values: Vec<f32>,
}

impl Contribution {
    /// Returns a weighted gradient, with the residual of the replica and variable added.
    pub(crate) fn new(
        parameters: &Parameters,
        (replica, variable): (usize, usize),
        weight: f32,
        gradient: impl ExactSizeIterator<Item = f32>,
    ) -> Self {
        let feedback = &parameters.feedback;
        let mut values = feedback.memory(gradient.len());
        feedback.with_residual(replica, variable, |residual| add(gradient, weight, residual, &mut values));
        Self { replica, variable, values }
    }

    fn into_residual(self) -> Residual {
        (self.replica, self.variable, self.values)
    }
}

/// Makes a contribution of each task, on all threads. Returns them in the order of replicas and variables.
pub(crate) fn contributions<T: Send>(
    threads: &Threads<'_>,
    tasks: Vec<T>,
    make: impl Fn(T) -> Result<Contribution> + Sync,
) -> Result<Vec<Contribution>> {
    let made = Mutex::new(Vec::new());
    each(threads, tasks, |task| {
        let one = make(task)?;
        lock(&made).push(one);
        Ok(())
    })?;
    let mut made = made.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    made.sort_by_key(|one| (one.replica, one.variable));
    Ok(made)
}

/// The index of a variable, and the sum of its gradients over all replicas.
pub(crate) type Sum = (usize, Vec<f32>);

/// The replicas that send contributions, or after local steps the workers.
pub(crate) struct Senders<'a> {
    /// The operation in errors.
    pub(crate) operation: &'static str,
    /// The number of replicas of each worker.
    pub(crate) each: usize,
    /// The number of replicas of all workers.
    pub(crate) all: usize,
    /// Returns `true` if a replica contributes to a variable.
    pub(crate) contributes: &'a (dyn Fn(usize, usize) -> bool + Sync),
}

/// The exchange of one step.
pub(crate) struct Exchange<'a, 'g> {
    /// The call with the other workers; `None` if there are none.
    calling: Option<&'a mut GroupCall<'g>>,
    parameters: &'a Parameters,
    senders: Senders<'a>,
    /// The index of this worker.
    worker: usize,
    threads: &'a Threads<'a>,
}

impl<'a, 'g> Exchange<'a, 'g> {
    pub(crate) fn new(
        calling: Option<&'a mut GroupCall<'g>>,
        parameters: &'a Parameters,
        senders: Senders<'a>,
        threads: &'a Threads<'a>,
    ) -> Self {
        let worker = calling.as_ref().map_or(0, |calling| calling.world().worker());
        Self { calling, parameters, senders, worker, threads }
    }

    /// Exchanges the contributions to the variables, which are in ascending order. Returns the sum over all replicas
    /// for each of them. The new residuals are [prepared](crate::feedback::Feedback::prepare) as those of step number
    /// `step` before the last message is sent.
    ///
    /// # Errors
    /// - The same error on all workers: a worker disconnects, times out or fails.
    /// - An error on this worker only: received data is malformed.
    pub(crate) fn sums(
        mut self,
        variables: &[usize],
        mine: Vec<Contribution>,
        step: u64,
    ) -> Result<Vec<Sum>> {
        let parameters = self.parameters;
        let has_packets = |variable: usize| range_codec(parameters, variable).is_some();
        let (ranges, matrices): (Vec<_>, Vec<_>) = variables.iter().partition(|number| has_packets(**number));
        let (of_ranges, of_matrices): (Vec<_>, Vec<_>) =
            mine.into_iter().partition(|one| has_packets(one.variable));
        parameters.feedback.begin(step);
        // A form has either packets or factors.
        let mut sums = self.packets(&ranges, of_ranges)?;
        sums.extend(self.factors(&matrices, of_matrices)?);
        Ok(sums)
    }

    /// Encodes contributions as packets, exchanges them, and returns their sums.
    fn packets(&mut self, variables: &[usize], mut mine: Vec<Contribution>) -> Result<Vec<Sum>> {
        if variables.is_empty() {
            return Ok(Vec::new());
        }
        let (parameters, threads) = (self.parameters, self.threads);
        let len = |variable: usize| {
            let count = parameters.variables[variable].1.elem_count();
            range_codec(parameters, variable).map_or(0, |codec| codec.packet_len(count))
        };
        let records = self.all_gather(variables, "its packets", len, |record| {
            let mut rest = record;
            let tasks = mine.iter_mut().map(|one| {
                let packet = rest.split_off_mut(..len(one.variable)).unwrap_or_default();
                (one, packet)
            });
            each(threads, tasks.collect(), |(one, packet)| {
                if let Some(codec) = range_codec(parameters, one.variable) {
                    codec.encode(&mut one.values, packet);
                }
                Ok(())
            })?;
            parameters.feedback.prepare(mine.into_iter().map(Contribution::into_residual));
            Ok(())
        })?;
        let mut sums: Vec<Sum> = variables
            .iter()
            .map(|number| (*number, vec![0.; self.parameters.variables[*number].1.elem_count()]))
            .collect();
        let tasks = sums.iter_mut().zip(&records).flat_map(|((variable, sum), packets)| {
            let variable = *variable;
            sum.chunks_mut(RANGE).enumerate().map(move |(at, sum)| (variable, packets, at * RANGE, sum))
        });
        let operation = self.senders.operation;
        each(threads, tasks.collect(), |(variable, packets, first, sum)| {
            match range_codec(parameters, variable) {
                Some(codec) => decode_sum(codec, packets, first, sum)
                    .map_err(|source| Error::Tensor { operation, source }),
                None => Ok(()),
            }
        })?;
        Ok(sums)
    }

    /// Computes and exchanges the factors of matrices, and returns the sums of the contributions.
    fn factors(&mut self, variables: &[usize], mut mine: Vec<Contribution>) -> Result<Vec<Sum>> {
        if variables.is_empty() {
            return Ok(Vec::new());
        }
        let matrices: Vec<Matrix> = variables
            .iter()
            .filter_map(|number| {
                let shape = shape(self.parameters, *number)?;
                let q = self.parameters.feedback.factor(*number, || shape.initial_q(self.name(*number)));
                Some(Matrix { variable: *number, shape, q, p: Vec::new() })
            })
            .collect();
        let at =
            |matrices: &[Matrix], variable: usize| matrices.binary_search_by_key(&variable, |m| m.variable);
        let mut matrices = matrices;

        let (threads, parameters) = (self.threads, self.parameters);
        let len = |variable| shape(parameters, variable).map_or(0, |shape| 4 * shape.len_p());
        let records = self.all_gather(variables, "its factors P", len, |record| {
            let mut rest = record;
            let tasks =
                mine.iter().map(|one| (one, rest.split_off_mut(..len(one.variable)).unwrap_or_default()));
            each(threads, tasks.collect(), |(one, place)| {
                if let Ok(at) = at(&matrices, one.variable) {
                    let Matrix { shape, q, .. } = &matrices[at];
                    let mut p = vec![0.; shape.len_p()];
                    shape.multiply(&one.values, q, &mut p);
                    place.copy_from_slice(bytemuck::cast_slice(&p));
                }
                Ok(())
            })
        })?;
        each(self.threads, matrices.iter_mut().zip(&records).collect(), |(matrix, records)| {
            matrix.p = sum_numbers(records, matrix.shape.len_p());
            matrix.shape.orthogonalize(&mut matrix.p);
            Ok(())
        })?;

        let len = |variable| shape(parameters, variable).map_or(0, |shape| 4 * shape.len_q());
        let records = self.all_gather(variables, "its factors Q", len, |record| {
            let mut rest = record;
            let tasks = mine.iter_mut().map(|one| {
                let place = rest.split_off_mut(..len(one.variable)).unwrap_or_default();
                (one, place)
            });
            each(threads, tasks.collect(), |(one, place)| {
                if let Ok(at) = at(&matrices, one.variable) {
                    let Matrix { shape, p, .. } = &matrices[at];
                    let mut q = vec![0.; shape.len_q()];
                    shape.multiply_transposed(&one.values, p, &mut q);
                    shape.subtract(&mut one.values, p, &q);
                    place.copy_from_slice(bytemuck::cast_slice(&q));
                }
                Ok(())
            })?;
            parameters.feedback.prepare(mine.into_iter().map(Contribution::into_residual));
            Ok(())
        })?;
        let mut sums = Vec::with_capacity(matrices.len());
        for (matrix, records) in matrices.iter_mut().zip(&records) {
            matrix.q = sum_numbers(records, matrix.shape.len_q());
            sums.push((matrix.variable, vec![0.; matrix.shape.elements()]));
        }
        let tasks = sums.iter_mut().zip(&matrices).flat_map(|((_, sum), matrix)| {
            let rows = (RANGE / matrix.shape.columns.max(1)).max(1);
            let ranges = sum.chunks_mut(rows * matrix.shape.columns).enumerate();
            ranges.map(move |(at, sum)| (matrix, at * rows, sum))
        });
        each(self.threads, tasks.collect(), |(Matrix { shape, p, q, .. }, first, sum)| {
            shape.product(p, q, first, sum);
            Ok(())
        })?;
        let renewed = matrices.into_iter().map(|Matrix { variable, shape, mut q, .. }| {
            shape.renew(&mut q, self.name(variable));
            (variable, q)
        });
        self.parameters.feedback.prepare_factors(renewed.collect());
        Ok(sums)
    }

    fn name(&self, variable: usize) -> &str {
        &self.parameters.variables[variable].0
    }

    /// Exchanges byte strings of all replicas, one for each of the given variables. `len` returns the length of a
    /// variable's string, and `fill` writes those of this worker's replicas, in the order of replicas and variables.
    /// Returns the strings of all replicas for each variable; `None` for a replica that does not contribute to the
    /// variable.
    fn all_gather(
        &mut self,
        variables: &[usize],
        what: &str,
        len: impl Fn(usize) -> usize,
        fill: impl FnOnce(&mut [u8]) -> Result<()>,
    ) -> Result<Vec<Vec<Option<Bytes>>>> {
        let parts = |this: &Self, worker: usize| -> Vec<(usize, usize, usize)> {
            let replicas = worker * this.senders.each..(worker + 1) * this.senders.each;
            let all = replicas.flat_map(|replica| {
                let variables = variables.iter().enumerate();
                let there =
                    variables.filter(move |(_, variable)| (this.senders.contributes)(replica, **variable));
                there.map(move |(at, variable)| (replica, at, *variable))
            });
            all.map(|(replica, at, variable)| (replica, at, len(variable))).collect()
        };
        let workers = self.senders.all / self.senders.each.max(1);
        let of_workers: Vec<_> = (0..workers).map(|worker| parts(self, worker)).collect();
        let size = |worker: usize| of_workers[worker].iter().map(|(.., len)| len).sum::<usize>();
        let records = match self.calling.as_ref().map(|calling| calling.buffers().clone()) {
            Some(buffers) => {
                let mut mine = buffers.take(size(self.worker));
                fill(mine.bytes_mut())?;
                let Some(calling) = &mut self.calling else { return Ok(Vec::new()) };
                calling
                    .all_gather_sized(what, mine.freeze(), size)
                    .map_err(failure(self.senders.operation))?
            }
            None => {
                let mut mine = vec![0; size(self.worker)];
                fill(&mut mine)?;
                vec![mine.into()]
            }
        };
        let mut all = vec![vec![None; self.senders.all]; variables.len()];
        for (parts, mut record) in of_workers.iter().zip(records) {
            for (replica, at, len) in parts {
                all[*at][*replica] = Some(record.split_to(*len));
            }
        }
        Ok(all)
    }
}

/// A matrix, and the factors of the sum of its gradients.
struct Matrix {
    variable: usize,
    shape: Shape,
    q: Vec<f32>,
    p: Vec<f32>,
}

/// Decodes the same range of the packets of all replicas, and writes the sum. `first` is the first element of the
/// range. A replica without a packet counts as zeros.
fn decode_sum(
    codec: RangeCodec,
    packets: &[Option<Bytes>],
    first: usize,
    sum: &mut [f32],
) -> Result<(), distribute_tensor::Error> {
    let start = codec.packet_len(first);
    let bytes = start..start + codec.packet_len(sum.len());
    let packets: Vec<Option<&[u8]>> =
        packets.iter().map(|one| one.as_ref().and_then(|packet| packet.get(bytes.clone()))).collect();
    codec.decode_sum(&packets, sum)
}

/// Returns the sum of the vectors that the replicas have sent. A replica without one counts as zeros.
fn sum_numbers(records: &[Option<Bytes>], len: usize) -> Vec<f32> {
    let zeros = vec![0f32; len];
    let all: Vec<_> =
        records.iter().map(|record| record.as_ref().map(|bytes| numbers::<f32>(bytes))).collect();
    let inputs: Vec<&[f32]> = all.iter().map(|numbers| numbers.as_deref().unwrap_or(&zeros)).collect();
    let mut sum = vec![0.; len];
    fold_scaled(&inputs, &vec![1f32; inputs.len()], &mut sum);
    sum
}

/// Calls `then` with the elements of a gradient on the host. Rows are first converted to a dense gradient.
fn with_dense<R>(gradient: &ReplicaGradient, variable: &Var, then: impl FnOnce(&[f32]) -> R) -> Result<R> {
    match gradient {
        ReplicaGradient::Dense(dense) => Ok(dense.with_elements(then)?),
        ReplicaGradient::Rows(_) => match gradient.to_dense(variable)? {
            ReplicaGradient::Dense(dense) => Ok(dense.with_elements(then)?),
            ReplicaGradient::Rows(_) => Err(Error::invalid("optimizer step", "rows of a gradient stay rows")),
        },
    }
}

/// Writes the weighted gradient plus the residual to `sum`. `residual` is empty if there is none yet.
fn add(gradient: impl Iterator<Item = f32>, weight: f32, residual: &[f32], sum: &mut [f32]) {
    if residual.is_empty() {
        sum.iter_mut().zip(gradient).for_each(|(sum, x)| *sum = weight * x);
        return;
    }
    for ((sum, x), residual) in sum.iter_mut().zip(gradient).zip(residual) {
        *sum = weight * x + residual;
    }
}

/// Calls `work` for each task, on all threads. Returns the first error.
fn each<T: Send>(threads: &Threads<'_>, tasks: Vec<T>, work: impl Fn(T) -> Result<()> + Sync) -> Result<()> {
    let (tasks, failed) = (Mutex::new(tasks.into_iter()), Mutex::new(None));
    (threads.broadcast)(&|_| {
        loop {
            let Some(task) = lock(&tasks).next() else { break };
            if let Err(error) = work(task) {
                lock(&failed).get_or_insert(error);
            }
        }
    });
    failed.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner).map_or(Ok(()), Err)
}
