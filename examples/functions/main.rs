//! The remote functions of a program and of a library that is linked with it, by their names. Nothing calls them: that they are there in a
//! release build is for the linker to see to.

#![forbid(unsafe_code)]

// Linked, and nothing of it is used.
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
