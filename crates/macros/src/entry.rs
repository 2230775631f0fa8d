//! `#[distribute::main]`.

use proc_macro2::TokenStream;
use quote::ToTokens;
use syn::{Error, ItemFn, Result};

/// The same function, with the call of `init` as its first statement.
pub fn expand(arguments: TokenStream, mut function: ItemFn) -> Result<TokenStream> {
    if !arguments.is_empty() {
        return Err(Error::new_spanned(arguments, "#[distribute::main] takes no arguments"));
    }
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
    Ok(function.into_token_stream())
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
            .contains("takes no arguments")
        );
    }
}
