//! Numbers and sizes as text.

/// Formats a number with approximately three significant digits.
pub fn number(x: f64) -> String {
    match x.abs() {
        a if a >= 100. => format!("{x:.0}"),
        a if a >= 10. => format!("{x:.1}"),
        a if a >= 1. => format!("{x:.2}"),
        _ => format!("{x:.3}"),
    }
}

/// Formats a number of bytes. For example, 4096 is formatted as `4KiB`.
pub fn size(bytes: usize) -> String {
    match bytes {
        b if b >= 1 << 20 => format!("{}MiB", b >> 20),
        b if b >= 1 << 10 => format!("{}KiB", b >> 10),
        b => format!("{b}B"),
    }
}
