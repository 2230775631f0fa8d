//! Embedding lookups: rows of a variable are looked up by id, limited in norm, and combined in bags.

use super::variable::Variable;
use distribute_base::{Error, Result};
use distribute_ps_tables::PartitionStrategy;
use distribute_tensor::{DType, HostTensor};

/// The rule by which the rows of a bag are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BagMode {
    /// The sum of the rows.
    Sum,
    /// The sum, divided by the number of rows or, if the rows are weighted, by the sum of the weights.
    Mean,
    /// The sum, divided by the square root of the number of rows or, if the rows are weighted, of the sum of the
    /// squared weights. The variance of the result is then independent of the number of rows.
    #[doc(alias = "sqrtn")]
    SqrtN,
}

/// Options of a lookup.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Lookup {
    /// The maximum Euclidean norm of a row. Rows with a larger norm are scaled down. `None` sets no limit.
    pub max_norm: Option<f64>,
    /// The partition strategy that the caller expects of the variable's rows. `None` accepts any.
    pub partition_strategy: Option<PartitionStrategy>,
}

/// Returns the rows for ids of any shape `[…]`, as a tensor of shape `[…, row]`.
///
/// # Errors
/// - [`Error::Params`]: an id is not the index of a row.
/// - [`Error::InvalidArgument`]: ids are not integers, `max_norm` is not positive or is given for rows that are neither
///   f32 nor f64, or rows are not partitioned as [`Lookup::partition_strategy`] expects. TensorFlow silently looks up
///   different rows in the last case.
/// - The other errors of [`Variable::gather`].
///
/// ```
/// # use distribute::prelude::*;
/// use distribute::{LocalCluster, ParameterServerStrategy, Variable, lookup, parameter_server::FixedShardsPartitioner};
/// let cluster = LocalCluster::new(1, 2)?;
/// let strategy = ParameterServerStrategy::new(cluster.resolver(), FixedShardsPartitioner::new(2)?)?;
/// let rows = HostTensor::new(vec![3f32, 4., 0., 1., 6., 8.], [3, 2])?;
/// let table = strategy.scope(|| Variable::new("table", rows))?;
/// let ids = HostTensor::new(vec![2i64, 0, 2, 1], [2, 2])?;
/// let rows = lookup::embedding_lookup(&table, &ids, lookup::Lookup { max_norm: Some(5.), ..Default::default() })?;
/// assert_eq!(rows, HostTensor::new(vec![3f32, 4., 3., 4., 3., 4., 0., 1.], [2, 2, 2])?);
/// # Ok::<(), distribute::Error>(())
/// ```
#[doc(alias = "tf.nn.embedding_lookup")]
pub fn embedding_lookup(variable: &Variable, ids: &HostTensor, lookup: Lookup) -> Result<HostTensor> {
    const OPERATION: &str = "embedding_lookup";
    let flat = integers(OPERATION, ids)?;
    let rows = rows_of(OPERATION, variable, &flat, lookup)?;
    let shape: Vec<usize> =
        ids.dims().iter().chain(variable.dims().get(1..).unwrap_or_default()).copied().collect();
    rows.reshape(shape).map_err(Error::tensor(OPERATION))
}

/// Bags of ids. Their lengths may differ, and each id may have a weight.
#[doc(alias = "tf.SparseTensor")]
#[doc(alias = "SparseTensor")]
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Bags {
    /// The ids in each bag.
    pub ids: Vec<Vec<i64>>,
    /// The weight of each id, by bag; `None` means that all weights are 1.
    pub weights: Option<Vec<Vec<f64>>>,
}

/// Looks up the ids of each bag and combines their rows. The result is the weighted sum of the rows. [`BagMode::Mean`]
/// divides it by the sum of the weights, and [`BagMode::SqrtN`] by the square root of the sum of the squared weights.
/// An empty bag results in zeros.
///
/// Models that are being trained should use `EmbeddingBag` instead.
///
/// # Errors
/// Returns the errors of [`embedding_lookup`], and [`Error::InvalidArgument`] for weights that don't match the ids and
/// for tables that are neither f32 nor f64.
#[doc(alias = "tf.nn.embedding_lookup_sparse")]
pub fn embedding_lookup_sparse(
    variable: &Variable,
    bags: &Bags,
    combiner: BagMode,
    lookup: Lookup,
) -> Result<HostTensor> {
    combined("embedding_lookup_sparse", variable, bags, combiner, lookup)
}

/// Acts like [`embedding_lookup_sparse`], but accepts unchecked data. Negative ids are skipped and, unless rows are
/// summed, ids whose weight is not positive are also skipped. For a bag without remaining ids, the result is the row
/// `default_id`, or zeros if `default_id` is `None`.
///
/// # Errors
/// Returns the errors of [`embedding_lookup_sparse`].
#[doc(alias = "tf.nn.safe_embedding_lookup_sparse")]
pub fn safe_embedding_lookup_sparse(
    variable: &Variable,
    bags: &Bags,
    combiner: BagMode,
    default_id: Option<i64>,
    lookup: Lookup,
) -> Result<HostTensor> {
    const OPERATION: &str = "safe_embedding_lookup_sparse";
    require_weights(OPERATION, bags)?;
    let mut kept = Bags { ids: Vec::new(), weights: bags.weights.as_ref().map(|_| Vec::new()) };
    for (number, ids) in bags.ids.iter().enumerate() {
        let weights = bags.weights.as_ref().map(|weights| weights[number].as_slice());
        let stays =
            |at: &usize| ids[*at] >= 0 && (combiner == BagMode::Sum || weights.is_none_or(|w| w[*at] > 0.));
        let positions: Vec<usize> = (0..ids.len()).filter(stays).collect();
        let (mut of_bag, mut counts): (Vec<i64>, Vec<f64>) =
            positions.iter().map(|at| (ids[*at], weights.map_or(1., |w| w[*at]))).unzip();
        if let (true, Some(default)) = (of_bag.is_empty(), default_id) {
            (of_bag, counts) = (vec![default], vec![1.]);
        }
        kept.ids.push(of_bag);
        if let Some(all) = &mut kept.weights {
            all.push(counts);
        }
    }
    combined(OPERATION, variable, &kept, combiner, lookup)
}

fn combined(
    operation: &'static str,
    variable: &Variable,
    bags: &Bags,
    combiner: BagMode,
    lookup: Lookup,
) -> Result<HostTensor> {
    require_weights(operation, bags)?;
    let (dtype, width) =
        (variable.dtype(), variable.dims().get(1..).unwrap_or_default().iter().product::<usize>());
    if !matches!(dtype, DType::F32 | DType::F64) {
        let reason = format!(
            "variable {} is {dtype}; only rows of float32 and float64 can be combined",
            variable.name()
        );
        return Err(Error::invalid(operation, reason));
    }
    let flat: Vec<i64> = bags.ids.iter().flatten().copied().collect();
    let rows =
        rows_of(operation, variable, &flat, lookup)?.cast(DType::F64).map_err(Error::tensor(operation))?;
    let rows = rows.as_slice::<f64>().unwrap_or_default();
    let mut sums = vec![0f64; bags.ids.len() * width];
    let mut next = 0;
    for (number, ids) in bags.ids.iter().enumerate() {
        let weight = |at: usize| bags.weights.as_ref().map_or(1., |weights| weights[number][at]);
        let sum = &mut sums[number * width..(number + 1) * width];
        for at in 0..ids.len() {
            let row = &rows[next * width..(next + 1) * width];
            sum.iter_mut().zip(row).for_each(|(sum, x)| *sum += weight(at) * x);
            next += 1;
        }
        let of_weights = |f: fn(f64) -> f64| (0..ids.len()).map(|at| f(weight(at))).sum::<f64>();
        let by = match combiner {
            BagMode::Sum => 1.,
            BagMode::Mean => of_weights(|w| w),
            BagMode::SqrtN => of_weights(|w| w * w).sqrt(),
        };
        if !ids.is_empty() {
            sum.iter_mut().for_each(|x| *x /= by);
        }
    }
    let shape: Vec<usize> = std::iter::once(&bags.ids.len())
        .chain(variable.dims().get(1..).unwrap_or_default())
        .copied()
        .collect();
    let sums = HostTensor::new(sums, shape).and_then(|sums| sums.cast(dtype));
    sums.map_err(Error::tensor(operation))
}

fn require_weights(operation: &'static str, bags: &Bags) -> Result<()> {
    let Some(weights) = &bags.weights else { return Ok(()) };
    let lens = |all: &mut dyn Iterator<Item = usize>| all.collect::<Vec<_>>();
    let (of_ids, of_weights) =
        (lens(&mut bags.ids.iter().map(Vec::len)), lens(&mut weights.iter().map(Vec::len)));
    if of_ids == of_weights {
        return Ok(());
    }
    let reason = "the weights do not match the ids: there has to be one for each id of each bag";
    Err(Error::invalid(operation, reason))
}

/// Returns the rows of `ids`, in order. Rows whose norm exceeds [`Lookup::max_norm`] are scaled down to it.
fn rows_of(operation: &'static str, variable: &Variable, ids: &[i64], lookup: Lookup) -> Result<HostTensor> {
    // SV-7
    let dealt = variable
        .remote()
        .and_then(|remote| remote.numbered()?.partition())
        .map(|partition| partition.strategy());
    if let (Some(asked), Some(dealt)) = (lookup.partition_strategy, dealt)
        && asked != dealt
    {
        let reason = format!(
            "the rows of variable {} are partitioned by {dealt:?}, not by {asked:?}, which would look up other rows; \
             leave partition_strategy out, or pass that of the variable",
            variable.name()
        );
        return Err(Error::invalid(operation, reason));
    }
    let rows = variable.gather(ids)?;
    let Some(max_norm) = lookup.max_norm else { return Ok(rows) };
    let width: usize = rows.dims().get(1..).unwrap_or_default().iter().product();
    let dtype = rows.dtype();
    if !matches!(dtype, DType::F32 | DType::F64) {
        let reason = format!(
            "variable {} is {dtype}, whose rows have no norm here; leave max_norm out",
            variable.name()
        );
        return Err(Error::invalid(operation, reason));
    }
    if max_norm.is_nan() || max_norm <= 0. {
        return Err(Error::invalid(operation, format!("max_norm must be positive, not {max_norm}")));
    }
    let mut wide = rows.cast(DType::F64).map_err(Error::tensor(operation))?;
    for row in wide.as_mut_slice::<f64>().unwrap_or_default().chunks_exact_mut(width.max(1)) {
        let norm = row.iter().map(|x| x * x).sum::<f64>().sqrt();
        if norm > max_norm {
            row.iter_mut().for_each(|x| *x *= max_norm / norm);
        }
    }
    wide.cast(dtype).map_err(Error::tensor(operation))
}

fn integers(operation: &'static str, ids: &HostTensor) -> Result<Vec<i64>> {
    let wide = match ids.dtype() {
        DType::I8 | DType::U8 | DType::I16 | DType::U16 | DType::I32 | DType::U32 | DType::I64 => {
            ids.cast(DType::I64)
        }
        dtype => {
            return Err(Error::invalid(
                operation,
                format!("ids must be integers of at most 64 bits, not {dtype}"),
            ));
        }
    };
    wide.and_then(HostTensor::into_vec).map_err(Error::tensor(operation))
}
