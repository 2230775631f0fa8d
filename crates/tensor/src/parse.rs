//! Conversion of text to dtypes and reduce operations.

use crate::{DType, Error, ReduceOp, Result};
use std::str::FromStr;

impl FromStr for DType {
    type Err = Error;

    /// Parses a name as returned by [`DType::name`], such as `"float32"`.
    ///
    /// # Errors
    /// - [`Error::UnknownDType`]: no dtype has this name.
    fn from_str(text: &str) -> Result<Self> {
        DType::ALL
            .into_iter()
            .find(|d| d.name() == text)
            .ok_or_else(|| Error::UnknownDType { found: text.to_string() })
    }
}

impl FromStr for ReduceOp {
    type Err = Error;

    /// Parses `"SUM"` or `"MEAN"`, ignoring case.
    ///
    /// # Errors
    /// - [`Error::UnknownReduceOp`]: the text is neither.
    fn from_str(text: &str) -> Result<Self> {
        match text.to_ascii_uppercase().as_str() {
            "SUM" => Ok(ReduceOp::Sum),
            "MEAN" => Ok(ReduceOp::Mean),
            _ => Err(Error::UnknownReduceOp { found: text.to_string() }),
        }
    }
}
