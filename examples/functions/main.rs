//! Prints the names of the remote functions of a program and of a linked library. No code calls them, so the
//! linker must keep them in a release build.

#![forbid(unsafe_code)]

// Linked, although no item is used.
use distribute_examples as _;

mod alone {
    use distribute::Result;
    use distribute::remote::WorkerContext;

    #[distribute::remote]
    pub fn double(_worker: &WorkerContext, x: f32) -> Result<f32> {
        Ok(2. * x)
    }
}

fn main() -> distribute::Result<()> {
    for function in distribute::remote::functions()? {
        println!("{function}");
    }
    Ok(())
}
