//! The blocks of ports from which a job selects one by its number. Different jobs on a host thus usually use different
//! ports.

/// The first port of the first block. All blocks are below the ports that Linux assigns to clients.
const FIRST: u16 = 10_000;

/// The number of ports of a block.
const BLOCK: u16 = 64;

/// The number of blocks.
const BLOCKS: u16 = 350;

/// Returns the first port of the block for a job with this number.
pub fn first_port(job: usize) -> u16 {
    // The remainder is less than `BLOCKS`.
    FIRST + (job % usize::from(BLOCKS)) as u16 * BLOCK
}

/// Returns `first_port` as an expression for the shell. `job` is the number of the job in the syntax of shell
/// arithmetic: `$$`, or the name of a variable.
pub fn first_port_in_shell(job: &str) -> String {
    format!("$(({FIRST} + {job} % {BLOCKS} * {BLOCK}))")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_do_not_overlap_and_are_below_the_ports_of_clients() {
        assert_eq!([70, 71, 419].map(first_port), [14_480, 14_544, 14_416]);
        let ports = (0..usize::from(BLOCKS)).map(first_port);
        assert!(ports.clone().is_sorted_by(|one, next| one + BLOCK == *next));
        assert!(ports.max().is_some_and(|last| last + BLOCK <= 32_768));
        assert_eq!(first_port(usize::MAX), FIRST + (usize::MAX % 350) as u16 * BLOCK);
        assert_eq!(first_port_in_shell("$$"), "$((10000 + $$ % 350 * 64))");
    }
}
