//! The sum of the gradients of several replicas, on their devices.

use crate::parameters::Copies;
use candle_core::Tensor;
use distribute_base::Result;
use distribute_base::internal::{Dense, ReplicaGradient};

/// Sums gradients over all replicas, and returns the sums on each replica's device.
///
/// `sum` computes the sums from `parts[replica][number]`, which contain only the variables that have a gradient on at
/// least one replica. The gradients of a single replica are returned unchanged. Returns `None` if a gradient is by row,
/// because replicas may then have different rows.
pub(crate) fn sum_on_devices(
    gradients: Vec<Vec<Option<ReplicaGradient>>>,
    copies: &Copies<'_>,
    sum: impl FnOnce(&[Vec<Tensor>]) -> Result<Vec<Vec<Tensor>>>,
) -> Result<Option<Vec<Vec<Option<ReplicaGradient>>>>> {
    if gradients.len() < 2 {
        return Ok(Some(gradients));
    }
    if gradients.iter().flatten().flatten().any(|gradient| matches!(gradient, ReplicaGradient::Rows(_))) {
        return Ok(None);
    }
    let variables = 0..copies.len();
    let has = |variable: &usize| gradients.iter().any(|of| of.get(*variable).is_some_and(Option::is_some));
    let summands: Vec<usize> = variables.filter(has).collect();
    let values = |gradient: &Option<ReplicaGradient>| gradient.as_ref()?.on_device().cloned();
    let part = |replica: usize, variable: usize| match values(&gradients[replica][variable]) {
        Some(values) => Ok(values),
        // A replica without a gradient counts as zero.
        None => match copies[variable].as_ref().and_then(|copies| copies.get(replica)) {
            Some(copy) => copy.as_detached_tensor().zeros_like(),
            None => candle_core::bail!("replica {replica} has no copy of variable {variable}"),
        },
    };
    let parts = (0..gradients.len())
        .map(|replica| summands.iter().map(|variable| part(replica, *variable)).collect())
        .collect::<candle_core::Result<Vec<Vec<Tensor>>>>()?;
    let sums = sum(&parts)?;
    let spread = |sums: Vec<Tensor>| {
        let mut all = vec![None; copies.len()];
        for (variable, sum) in summands.iter().zip(sums) {
            all[*variable] = Some(ReplicaGradient::Dense(Dense::Device(sum)));
        }
        all
    };
    Ok(Some(sums.into_iter().map(spread).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{Device, Var};
    use distribute_base::internal::{EitherFloat, Rows};

    fn dense(value: f32) -> Option<ReplicaGradient> {
        Some(ReplicaGradient::Dense(Dense::Device(Tensor::new(&[value], &Device::Cpu).unwrap())))
    }

    #[test]
    fn a_gradient_that_one_replica_lacks_is_zeros_and_one_that_all_lack_stays_away() {
        let var = Var::new(&[9f32], &Device::Cpu).unwrap();
        let copies: Copies<'_> = vec![Some(vec![&var, &var]); 3];
        let gradients = vec![vec![dense(1.), None, None], vec![dense(2.), None, dense(5.)]];
        let sum = |parts: &[Vec<Tensor>]| {
            let sums: Vec<Tensor> = (0..2).map(|at| (&parts[0][at] + &parts[1][at]).unwrap()).collect();
            assert_eq!((parts[0].len(), parts[1].len()), (2, 2));
            Ok(vec![sums.clone(), sums])
        };
        for of_replica in sum_on_devices(gradients, &copies, sum).unwrap().unwrap() {
            let values: Vec<Option<Vec<f32>>> =
                of_replica.iter().map(|sum| Some(sum.as_ref()?.on_device()?.to_vec1().unwrap())).collect();
            assert_eq!(values, [Some(vec![3.]), None, Some(vec![5.])]);
        }
    }

    #[test]
    fn rows_of_several_replicas_are_for_the_host_and_a_lone_replica_sums_nothing() {
        let var = Var::new(&[[9f32], [8.]], &Device::Cpu).unwrap();
        let rows = ReplicaGradient::Rows(Rows::new(vec![1], EitherFloat::F32(vec![1.])));
        let rows = Some(rows.into_device(&var).unwrap());
        let never = |_: &[Vec<Tensor>]| -> Result<Vec<Vec<Tensor>>> { panic!("nothing is to be summed") };
        let copies: Copies<'_> = vec![Some(vec![&var, &var])];
        assert!(sum_on_devices(vec![vec![rows.clone()], vec![None]], &copies, never).unwrap().is_none());
        let alone = sum_on_devices(vec![vec![rows]], &copies, never).unwrap().unwrap();
        assert!(alone[0][0].is_some());
    }
}
