//! The rate of a link, as users specify it.

use crate::error::invalid;
use distribute::Error;
use std::fmt;
use std::str::FromStr;

/// The rate of a link in each direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rate {
    /// The rate that the machine can achieve.
    Unlimited,
    /// The given number of bits per second, including headers.
    Limited(u64),
}

/// The units in bits per second, largest first.
const UNITS: [(&str, u64); 3] = [("gbit", 1_000_000_000), ("mbit", 1_000_000), ("kbit", 1_000)];

/// The range of valid rates, in bits per second. A rate outside it is probably a typing error.
const RATES: std::ops::RangeInclusive<f64> = 8e3..=1e12;

impl Rate {
    /// Returns the number of bytes that may be sent at once after a pause. A timer refills them; with fewer bytes, a
    /// delayed timer would reduce the rate. The number exceeds the largest packet that the kernel passes on unsplit,
    /// with the headers of its parts (64 KiB and 3 kB). The processor would have to split larger packets, which took 43
    /// ms instead of 18.
    pub fn burst(bits_per_second: u64) -> u64 {
        let half_a_millisecond = bits_per_second / 8 / 2000;
        half_a_millisecond.max(80_000)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Limited(bits) = self else { return f.write_str("unlimited") };
        match UNITS.into_iter().find(|(_, unit)| bits % unit == 0) {
            Some((name, unit)) => write!(f, "{}{name}", bits / unit),
            None => write!(f, "{bits}bit"),
        }
    }
}

impl FromStr for Rate {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let text = text.trim().to_ascii_lowercase();
        if text == "unlimited" {
            return Ok(Self::Unlimited);
        }
        let number = |(name, unit): (&str, u64)| Some((text.strip_suffix(name)?.parse::<f64>().ok()?, unit));
        let bits = UNITS.into_iter().find_map(number).map(|(number, unit)| number * unit as f64);
        match bits {
            Some(bits) if RATES.contains(&bits) => Ok(Self::Limited(bits.round() as u64)),
            _ => Err(invalid(format!(
                "{text:?} is no rate of a link: 1gbit, 2.5gbit, 100mbit and 500kbit are, and unlimited"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_said_as_it_is_read() {
        for (text, bits, said) in [
            ("1gbit", 1_000_000_000, "1gbit"),
            (" 2.5Gbit", 2_500_000_000, "2500mbit"),
            ("1000mbit", 1_000_000_000, "1gbit"),
            ("64kbit", 64_000, "64kbit"),
            ("8.0005kbit", 8001, "8001bit"),
        ] {
            let rate: Rate = text.parse().unwrap();
            assert_eq!((rate, rate.to_string().as_str()), (Rate::Limited(bits), said), "{text}");
        }
        assert_eq!("unlimited".parse::<Rate>().unwrap(), Rate::Unlimited);
        assert_eq!(Rate::Unlimited.to_string(), "unlimited");
    }

    #[test]
    fn an_invalid_rate_is_refused_by_name_with_an_example() {
        for text in ["", "1", "gbit", "-1gbit", "0gbit", "nangbit", "infgbit", "1gb", "1 tbit", "1e9gbit"] {
            let error = text.parse::<Rate>().unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")) && error.contains("1gbit"), "{error}");
        }
    }

    #[test]
    fn a_burst_is_short_beside_a_step_and_has_room_for_a_packet() {
        assert_eq!(Rate::burst(1_000_000_000), 80_000);
        assert_eq!(Rate::burst(10_000_000_000), 625_000);
        assert_eq!(Rate::burst(64_000), 80_000);
    }
}
