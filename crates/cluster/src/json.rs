//! JSON from other programs. Errors contain the path to the value that is not as expected.

use crate::address::Address;
use crate::malformed::shown;
use crate::{ClusterError, Malformed};
use serde_json::{Map, Value};

/// A value in a JSON document, and its path.
#[derive(Clone)]
pub(crate) struct Json<'a> {
    origin: &'a str,
    path: String,
    value: &'a Value,
}

/// Parses `text` as JSON. Errors contain `origin`, the name of its source.
pub(crate) fn parse(origin: &str, text: &str) -> Result<Value, Malformed> {
    serde_json::from_str(text).map_err(|error| Malformed {
        origin: origin.into(),
        path: String::new(),
        expected: "JSON".into(),
        found: match text.trim() {
            "" => "no text".into(),
            text => format!("{} ({error})", shown(&format_args!("{text:?}"))),
        },
        help: "",
    })
}

impl<'a> Json<'a> {
    pub(crate) fn new(origin: &'a str, value: &'a Value) -> Self {
        Self { origin, path: String::new(), value }
    }

    pub(crate) fn value(&self) -> &'a Value {
        self.value
    }

    /// Returns `value`, found under `key` in this object, together with its path.
    fn under(&self, key: &str, value: &'a Value) -> Self {
        let plain = !key.is_empty() && key.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_/".contains(&b));
        let path = match (self.path.as_str(), plain) {
            ("", true) => key.into(),
            (path, true) => format!("{path}.{key}"),
            (path, false) => format!("{path}[{key:?}]"),
        };
        Self { origin: self.origin, path, value }
    }

    /// Returns the error for this value if another was expected. `expected` describes a valid value.
    pub(crate) fn expected(&self, expected: impl Into<String>) -> Malformed {
        self.wrong(expected, shown(self.value))
    }

    /// Returns the error for an unexpected value at this path. `expected` describes a valid value, and `found` the
    /// actual one.
    pub(crate) fn wrong(&self, expected: impl Into<String>, found: impl Into<String>) -> Malformed {
        Malformed {
            origin: self.origin.into(),
            path: self.path.clone(),
            expected: expected.into(),
            found: found.into(),
            help: "",
        }
    }

    /// Returns the value as an object. `expected` describes the object in the error for any other value.
    pub(crate) fn object(&self, expected: &str) -> Result<&'a Map<String, Value>, Malformed> {
        self.value.as_object().ok_or_else(|| self.expected(expected))
    }

    /// Returns the keys and values of an object. `expected` describes the object in the error for any other value.
    pub(crate) fn entries(&self, expected: &str) -> Result<Vec<(&'a str, Self)>, Malformed> {
        let object = self.object(expected)?;
        Ok(object.iter().map(|(key, value)| (key.as_str(), self.under(key, value))).collect())
    }

    /// Returns the value under `key` in an object, or `None` if the key is missing. `expected` describes the object in
    /// the error for any other value.
    pub(crate) fn get(&self, key: &str, expected: &str) -> Result<Option<Self>, Malformed> {
        let object = self.object(expected)?;
        Ok(object.get(key).map(|value| self.under(key, value)))
    }

    /// Returns the elements of a list. `expected` describes the list in the error for any other value.
    pub(crate) fn items(&self, expected: &str) -> Result<Vec<Self>, Malformed> {
        let list = self.value.as_array().ok_or_else(|| self.expected(expected))?;
        let item = |(i, value)| Self { origin: self.origin, path: format!("{}[{i}]", self.path), value };
        Ok(list.iter().enumerate().map(item).collect())
    }

    pub(crate) fn text(&self, expected: &str) -> Result<&'a str, Malformed> {
        self.value.as_str().ok_or_else(|| self.expected(expected))
    }

    pub(crate) fn address(&self) -> Result<Address, Malformed> {
        let expected = r#""host:port""#;
        self.text(expected)?.parse().map_err(|error| match error {
            ClusterError::Address { why, .. } => {
                self.wrong(expected, format!("{} ({why})", shown(self.value)))
            }
            other => self.wrong(expected, other.to_string()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_error_names_the_way_to_the_value() {
        let value = json!({"a": {"b c": [1, {"d-e": 17}]}});
        let whole = Json::new("X", &value);
        let a = whole.get("a", "").unwrap().unwrap();
        let list = a.get("b c", "").unwrap().unwrap().items("").unwrap();
        let error = list[1].get("d-e", "").unwrap().unwrap().text("text").unwrap_err();
        assert_eq!(error.to_string(), r#"X: a["b c"][1].d-e: expected text, found 17"#);
    }

    #[test]
    fn a_long_value_is_cut() {
        let value = json!("ä".repeat(1000));
        let error = Json::new("X", &value).expected("less").to_string();
        assert!(error.len() < 200 && error.ends_with('…'), "{error}");
        let error = parse("X", "{'cluster': {}}").unwrap_err().to_string();
        assert_eq!(
            error,
            r#"X: expected JSON, found "{'cluster': {}}" (key must be a string at line 1 column 2)"#
        );
        assert_eq!(parse("X", " \n").unwrap_err().to_string(), "X: expected JSON, found no text");
    }
}
