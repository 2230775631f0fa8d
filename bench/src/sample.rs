//! What one round gave, as a value and as the line of JSON by which processes say it.

use serde_json::{Value, json};

/// What one round gave.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sample {
    /// The value, in the figure's unit.
    pub value: f64,
    /// The losses of the steps, where they are what is compared.
    pub losses: Vec<f64>,
    /// Bytes that one of two hosts sent in a step, where they are counted.
    pub sent: Option<f64>,
}

impl From<f64> for Sample {
    fn from(value: f64) -> Self {
        Self { value, ..Self::default() }
    }
}

impl Sample {
    /// What another process has said; none where that is no value.
    pub fn said(line: &Value) -> Option<Self> {
        let losses = line["losses"].as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
        Some(Self { value: line["value"].as_f64()?, losses, sent: line["sent"].as_f64() })
    }

    /// To be said to another process.
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
