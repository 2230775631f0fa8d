//! The result of one round, as a value and as a line of JSON that is sent between processes.

use serde_json::{Value, json};

/// The result of one round.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// The measured value, in the figure's unit.
    pub value: f64,
    /// The losses of the steps, if losses are compared.
    pub losses: Vec<f64>,
    /// The number of bytes that one of two hosts sent per step, if they were counted.
    pub sent: Option<f64>,
}

impl From<f64> for Sample {
    fn from(value: f64) -> Self {
        Self { value, ..Self::default() }
    }
}

impl Sample {
    /// Parses a line that another process has printed. Returns `None` if it is not a sample.
    pub fn said(line: &Value) -> Option<Self> {
        let losses = line["losses"].as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
        Some(Self { value: line["value"].as_f64()?, losses, sent: line["sent"].as_f64() })
    }

    /// Formats a line for another process.
    pub fn line(&self) -> String {
        let Self { value, losses, sent } = self;
        json!({ "value": value, "losses": losses, "sent": sent }).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_what_was_measured() {
        for sample in [
            Sample::from(7.),
            Sample { value: 1.5, losses: vec![2., 0.1], sent: None },
            Sample { value: 0.25, losses: Vec::new(), sent: Some(1e6) },
        ] {
            assert_eq!(Sample::said(&serde_json::from_str(&sample.line()).unwrap()), Some(sample));
        }
        assert_eq!(Sample::said(&json!({ "error": "no luck" })), None);
    }
}
