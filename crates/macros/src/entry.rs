//! The expansion of `#[distribute::main]`.

use proc_macro2::TokenStream;
use quote::quote;
use syn::parse::{ParseStream, Parser};
use syn::{Error, Ident, ItemFn, Path, Result, ReturnType, Token, Type};

/// Returns the function with a call to `init` as its first statement, after the allocator that the arguments specify.
/// If the function returns a `Result`, its body becomes an inner function, whose result is passed to `end_main`.
pub fn expand(arguments: TokenStream, mut function: ItemFn) -> Result<TokenStream> {
    let allocator = allocator.parse2(arguments)?.map(|allocator| {
        quote!(
            #[global_allocator]
            static DISTRIBUTE_ALLOCATOR: #allocator = #allocator;
        )
    });
    if let Some(keyword) = &function.sig.asyncness {
        return Err(Error::new_spanned(
            keyword,
            "#[distribute::main] is for a plain function: an async runtime starts threads, but some settings must \
             precede the first thread; start the runtime inside main",
        ));
    }
    if !function.sig.inputs.is_empty() {
        return Err(Error::new_spanned(
            &function.sig.inputs,
            "the main function takes no arguments; read std::env::args()",
        ));
    }
    if returns_result(&function.sig.output) {
        let (output, body) = (&function.sig.output, &function.block);
        let block = syn::parse_quote!({
            // This name is visible in the body, so it must not shadow an item of the program.
            fn __distribute_main() #output #body
            ::distribute::end_main(__distribute_main())
        });
        *function.block = block;
    }
    function.block.stmts.insert(0, syn::parse_quote!(::distribute::init();));
    Ok(quote!(#allocator #function))
}

/// Returns whether the type is named `Result`. The types of the standard library, of this library and of `anyhow` are.
fn returns_result(output: &ReturnType) -> bool {
    let ReturnType::Type(_, of) = output else { return false };
    let Type::Path(path) = &**of else { return false };
    path.path.segments.last().is_some_and(|last| last.ident == "Result")
}

/// Parses the arguments: either none, or the path of a unit struct that is an allocator.
fn allocator(arguments: ParseStream<'_>) -> Result<Option<Path>> {
    const USAGE: &str =
        "#[distribute::main] takes an allocator or nothing: write allocator = mimalloc::MiMalloc";
    if arguments.is_empty() {
        return Ok(None);
    }
    let name: Ident = arguments.parse().map_err(|error| Error::new(error.span(), USAGE))?;
    if name != "allocator" {
        return Err(Error::new_spanned(name, USAGE));
    }
    let path = |input: ParseStream<'_>| {
        input.parse::<Token![=]>()?;
        let path = input.parse()?;
        input.parse::<Option<Token![,]>>()?;
        Ok(path)
    };
    let path = path(arguments).map_err(|error: Error| Error::new(error.span(), USAGE))?;
    if arguments.is_empty() { Ok(Some(path)) } else { Err(arguments.error(USAGE)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quote::quote;

    fn error(arguments: TokenStream, function: TokenStream) -> String {
        expand(arguments, syn::parse2(function).unwrap()).unwrap_err().to_string()
    }

    #[test]
    fn init_comes_before_everything_else() {
        let function = quote!(
            fn main() -> Result<()> {
                first()?;
                Ok(())
            }
        );
        let wanted = quote!(
            fn main() -> Result<()> {
                ::distribute::init();
                fn __distribute_main() -> Result<()> {
                    first()?;
                    Ok(())
                }
                ::distribute::end_main(__distribute_main())
            }
        );
        assert_eq!(expand(quote!(), syn::parse2(function).unwrap()).unwrap().to_string(), wanted.to_string());
    }

    #[test]
    fn a_function_of_the_program_is_not_hidden() {
        let function = syn::parse_quote!(
            fn main() -> Result<()> {
                program()
            }
        );
        let expanded: ItemFn = syn::parse2(expand(quote!(), function).unwrap()).unwrap();
        let items = expanded.block.stmts.iter().filter_map(|statement| match statement {
            syn::Stmt::Item(syn::Item::Fn(item)) => Some(item.sig.ident.to_string()),
            _ => None,
        });
        assert_eq!(items.collect::<Vec<_>>(), ["__distribute_main"], "its name is reserved");
    }

    #[test]
    fn invalid_main_functions_are_compile_errors() {
        assert!(
            error(
                quote!(),
                quote!(
                    async fn main() {}
                )
            )
            .contains("precede the first thread")
        );
        assert!(
            error(
                quote!(),
                quote!(
                    fn main(x: i32) {}
                )
            )
            .contains("no arguments; read std::env::args()")
        );
        assert!(
            error(
                quote!(threads = 2),
                quote!(
                    fn main() {}
                )
            )
            .contains("takes an allocator or nothing: write allocator = mimalloc::MiMalloc")
        );
        for arguments in
            [quote!(allocator), quote!(allocator = 2), quote!(allocator = A, allocator = B), quote!(=)]
        {
            let main = quote!(
                fn main() {}
            );
            assert!(error(arguments, main).contains("takes an allocator or nothing"));
        }
    }

    #[test]
    fn an_allocator_is_that_of_the_program() {
        let main = quote!(
            fn main() {}
        );
        let wanted = quote!(
            #[global_allocator]
            static DISTRIBUTE_ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
            fn main() {
                ::distribute::init();
            }
        );
        let expanded = expand(quote!(allocator = mimalloc::MiMalloc), syn::parse2(main).unwrap());
        assert_eq!(expanded.unwrap().to_string(), wanted.to_string());
    }
}
