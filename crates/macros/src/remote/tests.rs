use super::*;

fn expanded(function: TokenStream) -> String {
    expand(quote!(), syn::parse2(function).unwrap()).unwrap().to_string()
}

fn error(function: TokenStream) -> String {
    expand(quote!(), syn::parse2(function).unwrap()).unwrap_err().to_string()
}

#[test]
fn references_are_to_values_of_the_worker_and_all_else_is_sent() {
    let text = expanded(quote!(
        /// Trains.
        #[cfg(feature = "x")]
        #[inline]
        pub(crate) fn step(worker: &WorkerContext, model: &Model, (a, b): (f32, f32)) -> Result<f32> {
            model.step(worker, a + b)
        }
    ));
    let params = "type Params = (:: distribute :: remote :: Resource < Model > , :: distribute :: remote :: Value < (f32 , f32) > ,)";
    assert!(text.contains(params), "{text}");
    assert!(
        text.contains("type Target = fn (& WorkerContext , & Model , (f32 , f32)) -> Result < f32 >"),
        "{text}"
    );
    assert!(text.contains("into_result (step (__worker , & __0 , __1))"), "{text}");
    // The type has the visibility and the docs, both items have the `cfg`, and the function has everything
    // else.
    assert!(text.contains("pub (crate) struct step ;"), "{text}");
    assert_eq!(text.matches("cfg (feature = \"x\")").count(), 2, "{text}");
    assert!(text.find("Trains").unwrap() < text.find("struct step").unwrap());
    assert!(text.find("inline").unwrap() > text.find("const _").unwrap());
    assert!(
        text.contains("fn step (worker : & WorkerContext , model : & Model , (a , b) : (f32 , f32))"),
        "{text}"
    );
}

#[test]
fn a_function_without_arguments_has_no_parameters() {
    let text = expanded(quote!(
        fn r#type(worker: &distribute::remote::WorkerContext) -> distribute::Result<()> {
            Ok(())
        }
    ));
    assert!(text.contains("type Params = () ;"), "{text}");
    assert!(text.contains(r#"module_path ! () , "::" , "type""#), "{text}");
}

#[test]
fn invalid_remote_functions_are_compile_errors() {
    for (function, text) in [
        (
            quote!(
                async fn f(worker: &WorkerContext) -> Result<()> {}
            ),
            "cannot be async",
        ),
        (
            quote!(
                const fn f(worker: &WorkerContext) -> Result<()> {}
            ),
            "cannot be const",
        ),
        (
            quote!(
                extern "C" fn f(worker: &WorkerContext) -> Result<()> {}
            ),
            "a plain Rust function",
        ),
        (
            quote!(
                fn f<T>(worker: &WorkerContext, x: T) -> Result<()> {}
            ),
            "cannot have generic parameters or lifetimes",
        ),
        (
            quote!(
                fn f<'a>(worker: &'a WorkerContext) -> Result<()> {}
            ),
            "cannot have generic parameters or lifetimes",
        ),
        (
            quote!(
                fn f(worker: &WorkerContext) -> Result<()>
                where
                    u8: Copy,
                {
                }
            ),
            "cannot have a where clause",
        ),
        (
            quote!(
                fn f(&self, worker: &WorkerContext) -> Result<()> {}
            ),
            "cannot be a method",
        ),
        (
            quote!(
                fn f(self: Arc<Self>) -> Result<()> {}
            ),
            "cannot be a method",
        ),
        (
            quote!(
                fn f() -> Result<()> {}
            ),
            "the first parameter of a remote function is the worker",
        ),
        (
            quote!(
                fn f(model: &Model) -> Result<()> {}
            ),
            "`worker: &WorkerContext`",
        ),
        (
            quote!(
                fn f(worker: WorkerContext) -> Result<()> {}
            ),
            "`worker: &WorkerContext`",
        ),
        (
            quote!(
                fn f(worker: &mut WorkerContext) -> Result<()> {}
            ),
            "`worker: &WorkerContext`",
        ),
        (
            quote!(
                fn f(worker: &WorkerContext) {}
            ),
            "returns a Result",
        ),
        (
            quote!(
                fn f(worker: &WorkerContext) -> (f32, f32) {}
            ),
            "returns a Result",
        ),
        (
            quote!(
                fn f(worker: &WorkerContext) -> impl Sized {}
            ),
            "returns a Result",
        ),
        (
            quote!(
                fn f(worker: &WorkerContext, model: &mut Model) -> Result<()> {}
            ),
            "in a Mutex",
        ),
        (
            quote!(
                fn f(worker: &WorkerContext, model: &'static Model) -> Result<()> {}
            ),
            "without a lifetime",
        ),
        (
            quote!(
                fn f(worker: &WorkerContext, name: &str) -> Result<()> {}
            ),
            "take a `String`",
        ),
        (
            quote!(
                fn f(worker: &WorkerContext, ids: &[u64]) -> Result<()> {}
            ),
            "take a `Vec`",
        ),
        (
            quote!(
                fn f(worker: &WorkerContext, m: &dyn Module) -> Result<()> {}
            ),
            "by their type",
        ),
        (
            quote!(
                fn f(worker: &WorkerContext, x: impl Into<f32>) -> Result<()> {}
            ),
            "name the type that is sent",
        ),
        (
            quote!(
                fn f(
                    worker: &WorkerContext,
                    a: u8,
                    b: u8,
                    c: u8,
                    d: u8,
                    e: u8,
                    f: u8,
                    g: u8,
                    h: u8,
                    i: u8,
                ) -> Result<()> {
                }
            ),
            "at most 8 parameters",
        ),
    ] {
        let found = error(function.clone());
        assert!(found.contains(text), "{function}: {found}");
    }
    let argument = expand(
        quote!(name = "f"),
        syn::parse_quote!(
            fn f(worker: &WorkerContext) -> Result<()> {}
        ),
    );
    assert!(argument.unwrap_err().to_string().contains("takes no arguments"));
}

#[test]
fn another_source_is_another_number() {
    let source = |function: TokenStream| {
        let text = expanded(function);
        let from = text.find("const SOURCE : u64 =").unwrap();
        text[from..].split(';').next().unwrap().to_string()
    };
    let one = source(quote!(
        fn f(worker: &WorkerContext, x: f32) -> Result<f32> {
            Ok(x)
        }
    ));
    // The docs are not part of the hash.
    let documented = source(quote!(
        /// Returns the same.
        pub fn f(worker: &WorkerContext, x: f32) -> Result<f32> {
            Ok(x)
        }
    ));
    assert_eq!(one, documented);
    assert_ne!(
        one,
        source(quote!(
            fn f(worker: &WorkerContext, x: f32) -> Result<f32> {
                Ok(-x)
            }
        ))
    );
    assert_ne!(
        one,
        source(quote!(
            fn f(worker: &WorkerContext, x: f64) -> Result<f32> {
                Ok(x)
            }
        ))
    );
}
