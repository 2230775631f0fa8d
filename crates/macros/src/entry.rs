//! The expansion of `#[distribute::main]`.

use proc_macro2::TokenStream;
use quote::quote;
use syn::parse::{ParseStream, Parser};
use syn::{Error, Ident, ItemFn, Path, Result, Token};

/// Returns the function with a call of `init` as its first statement, and the allocator from the arguments.
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
            "#[distribute::main] is for a plain function: an async runtime starts threads, and settings that have to \
             come before any thread would come too late; call the runtime from within",
        ));
    }
    if !function.sig.inputs.is_empty() {
        return Err(Error::new_spanned(
            &function.sig.inputs,
            "the main function takes no arguments; read std::env::args()",
        ));
    }
    function.block.stmts.insert(0, syn::parse_quote!(::distribute::init();));
    Ok(quote!(#allocator #function))
}

/// Parses the arguments: none, or the path of a unit struct that is an allocator.
fn allocator(arguments: ParseStream<'_>) -> Result<Option<Path>> {
    const TAKES: &str =
        "#[distribute::main] takes an allocator or nothing: write allocator = mimalloc::MiMalloc";
    if arguments.is_empty() {
        return Ok(None);
    }
    let name: Ident = arguments.parse().map_err(|error| Error::new(error.span(), TAKES))?;
    if name != "allocator" {
        return Err(Error::new_spanned(name, TAKES));
    }
    let path = |input: ParseStream<'_>| {
        input.parse::<Token![=]>()?;
        let path = input.parse()?;
        input.parse::<Option<Token![,]>>()?;
        Ok(path)
    };
    let path = path(arguments).map_err(|error: Error| Error::new(error.span(), TAKES))?;
    if arguments.is_empty() { Ok(Some(path)) } else { Err(arguments.error(TAKES)) }
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
                first()?;
                Ok(())
            }
        );
        assert_eq!(expand(quote!(), syn::parse2(function).unwrap()).unwrap().to_string(), wanted.to_string());
    }

    #[test]
    fn what_cannot_work_is_a_compile_error() {
        assert!(
            error(
                quote!(),
                quote!(
                    async fn main() {}
                )
            )
            .contains("too late")
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
