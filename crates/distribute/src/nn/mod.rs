//! Parts of models that know about replicas and empty pieces.

pub mod loss;
