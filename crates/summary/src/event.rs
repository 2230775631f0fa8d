//! The contents of an event file: the fields of TensorFlow's messages `Event`, `Summary` and `HistogramProto` that are
//! written.

use prost::{Message, Oneof};

/// The version in the first event of every file.
pub(crate) const VERSION: &str = "brain.Event:2";

/// A record of the file.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Event {
    /// The time in seconds since 1970.
    #[prost(double, tag = "1")]
    pub(crate) wall_time: f64,
    #[prost(int64, tag = "2")]
    pub(crate) step: i64,
    #[prost(oneof = "What", tags = "3, 5")]
    pub(crate) what: Option<What>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum What {
    #[prost(string, tag = "3")]
    FileVersion(String),
    #[prost(message, tag = "5")]
    Summary(Summary),
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Summary {
    #[prost(message, repeated, tag = "1")]
    pub(crate) values: Vec<Value>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Value {
    #[prost(string, tag = "1")]
    pub(crate) tag: String,
    #[prost(oneof = "Kind", tags = "2, 5")]
    pub(crate) kind: Option<Kind>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(crate) enum Kind {
    #[prost(float, tag = "2")]
    Scalar(f32),
    #[prost(message, tag = "5")]
    Histogram(Histogram),
}

/// The counts of values: `counts[i]` values are below `limits[i]`, and not below the previous limit.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Histogram {
    #[prost(double, tag = "1")]
    pub(crate) min: f64,
    #[prost(double, tag = "2")]
    pub(crate) max: f64,
    #[prost(double, tag = "3")]
    pub(crate) number: f64,
    #[prost(double, tag = "4")]
    pub(crate) sum: f64,
    #[prost(double, tag = "5")]
    pub(crate) sum_of_squares: f64,
    #[prost(double, repeated, tag = "6")]
    pub(crate) limits: Vec<f64>,
    #[prost(double, repeated, tag = "7")]
    pub(crate) counts: Vec<f64>,
}

impl Event {
    /// Creates an event with one value. A step above [`i64::MAX`] is recorded as `i64::MAX`.
    pub(crate) fn of(wall_time: f64, step: u64, tag: &str, kind: Kind) -> Self {
        let value = Value { tag: tag.into(), kind: Some(kind) };
        let what = What::Summary(Summary { values: vec![value] });
        Self { wall_time, step: i64::try_from(step).unwrap_or(i64::MAX), what: Some(what) }
    }

    /// Creates the first event of a file.
    pub(crate) fn first(wall_time: f64) -> Self {
        Self { wall_time, step: 0, what: Some(What::FileVersion(VERSION.into())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that messages have the bytes that TensorFlow writes for the same events: field numbers and types are
    /// those of its messages.
    #[test]
    fn messages_have_the_bytes_of_tensorflows() {
        let first = Event::first(1.5).encode_to_vec();
        assert_eq!(first, [&[0x09, 0, 0, 0, 0, 0, 0, 0xf8, 0x3f, 0x1a, 13][..], b"brain.Event:2"].concat());
        let scalar = Event::of(1.5, 300, "loss", Kind::Scalar(0.5)).encode_to_vec();
        let expected = [
            &[0x09, 0, 0, 0, 0, 0, 0, 0xf8, 0x3f][..], // wall_time: 1.5
            &[0x10, 0xac, 0x02],                       // step: 300
            &[0x2a, 13, 0x0a, 11],                     // summary { value {
            &[0x0a, 4, b'l', b'o', b's', b's'],        // tag
            &[0x15, 0, 0, 0, 0x3f],                    // simple_value: 0.5 } }
        ];
        assert_eq!(scalar, expected.concat());
        assert_eq!(Event::decode(&*scalar).unwrap(), Event::of(1.5, 300, "loss", Kind::Scalar(0.5)));
    }

    #[test]
    fn a_step_beyond_the_range_of_the_file_is_the_last_one() {
        assert_eq!(Event::of(0., u64::MAX, "a", Kind::Scalar(0.)).step, i64::MAX);
    }
}
