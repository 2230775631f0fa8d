use super::*;
use candle_core::Device;
use distribute_tensor::HostTensor;

const GPUS: &[DeviceName] = &[DeviceName::gpu(0), DeviceName::gpu(1)];

#[test]
fn on_cpus_nothing_is_asked_of_nccl() {
    let cpus = [DeviceName::cpu(0), DeviceName::cpu(1)];
    let ops = NcclAllReduce::default();
    ops.check(&cpus).unwrap();
    assert!(!ops.takes_device_tensors(&cpus));
    assert!(!uses_nccl(Some(&ops), &cpus));
    let part = Tensor::new(&[1f32, 2.], &Device::Cpu).unwrap();
    let error = sum_on_gpus(&cpus, &[vec![part.clone()], vec![part]], Duration::from_secs(60)).unwrap_err();
    assert!(matches!(&error, Error::Device { name, .. } if name.contains("CPU:1")), "{error}");
}

#[test]
fn values_that_are_not_on_gpus_are_reduced_to_one_device() {
    let parts = [1f32, 2.].map(|x| Leaf::Host(HostTensor::vector(vec![x]))).to_vec();
    let value = Reduction { parts, from: GPUS, to: GPUS };
    let sums =
        NcclAllReduce::default().reduce(ReduceOp::Mean, &value, &CommunicationOptions::default()).unwrap();
    assert_eq!(sums.len(), 2);
    for sum in sums {
        assert_eq!(sum.to_host().unwrap().to_vec::<f32>().unwrap(), [1.5]);
    }
}

#[test]
fn a_build_without_cuda_links_nothing() {
    assert_eq!(can_link(GPUS), cfg!(feature = "cuda"));
    assert!(!can_link(&GPUS[..1]));
}
