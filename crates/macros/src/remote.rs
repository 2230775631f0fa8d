//! The expansion of `#[distribute::remote]`.

use crate::source;
use proc_macro2::TokenStream;
use quote::{ToTokens, quote, quote_spanned};
use syn::ext::IdentExt;
use syn::spanned::Spanned;
use syn::{Attribute, Error, FnArg, Ident, ItemFn, Meta, PatType, Result, ReturnType, Signature, Type};

/// The maximum number of parameters after the worker, which is the length of the longest supported tuple of arguments.
const MAX_PARAMETERS: usize = 8;

const CONTEXT: &str = "WorkerContext";

/// Returns a type with the function's name, which can be called like the function and identifies the function to a
/// coordinator, and the registration of the function.
pub fn expand(arguments: TokenStream, function: ItemFn) -> Result<TokenStream> {
    if !arguments.is_empty() {
        return Err(Error::new_spanned(arguments, "#[distribute::remote] takes no arguments"));
    }
    let signature = &function.sig;
    check(signature)?;
    let output = output(signature)?;
    let types = parameters(signature)?;
    let kinds = types.iter().skip(1).map(|ty| kind(ty)).collect::<Result<Vec<_>>>()?;
    let (held, given): (Vec<_>, Vec<_>) = kinds.iter().enumerate().map(Kind::passed).unzip();
    let params = kinds.iter().map(|Kind { of, by_reference, .. }| {
        let name = if *by_reference { quote!(Resource) } else { quote!(Value) };
        quote_spanned!(of.span()=> ::distribute::remote::#name<#of>)
    });

    let (name, visibility, block) = (&signature.ident, &function.vis, &function.block);
    let text = name.unraw().to_string();
    let hash = source::hash(quote!(#signature #block));
    let Attributes { of_type, of_all, of_function } = Attributes::of(&function.attrs);
    let output_of = quote_spanned!(output.span()=> <#output as ::distribute::remote::Outcome>::Output);
    Ok(quote! {
        #(#of_all)*
        #(#of_type)*
        #[allow(non_camel_case_types)]
        #[derive(::core::clone::Clone, ::core::marker::Copy, ::core::fmt::Debug)]
        #visibility struct #name;

        #(#of_all)*
        const _: () = {
            use ::distribute::remote::expanded as __expanded;
            #[allow(unused_imports)]
            use ::distribute::remote::expanded::NoCapability as _;

            #(#of_function)*
            #signature #block

            impl ::core::ops::Deref for #name {
                type Target = fn(#(#types),*) -> #output;

                fn deref(&self) -> &Self::Target {
                    const FUNCTION: fn(#(#types),*) -> #output = #name;
                    &FUNCTION
                }
            }

            impl ::distribute::remote::RemoteFunction for #name {
                const NAME: &'static str = ::core::concat!(::core::module_path!(), "::", #text);
                const SOURCE: u64 = #hash;
                type Params = (#(#params,)*);
                type Output = #output_of;

                fn call(
                    __worker: &::distribute::remote::WorkerContext,
                    (#(#held,)*): <Self::Params as ::distribute::remote::Params>::Decoded,
                ) -> ::distribute::Result<Self::Output> {
                    ::distribute::remote::Outcome::into_result(#name(__worker #(, #given)*))
                }
            }

            __expanded::inventory::submit! {
                __expanded::Entry::new::<#name>(
                    (::core::file!(), ::core::line!()),
                    (__expanded::Capabilities::<#name>::ENCODE_RESULT, __expanded::Capabilities::<#name>::MAKE_RESOURCE, __expanded::Capabilities::<#name>::MAKE_DATASET),
                )
            }
        };
    })
}

/// Checks that the function's signature is supported.
fn check(signature: &Signature) -> Result<()> {
    let refuse = |tokens: &dyn ToTokens, text: &str| {
        Err(Error::new_spanned(tokens.to_token_stream(), format!("a remote function {text}")))
    };
    if let Some(keyword) = &signature.asyncness {
        return refuse(
            keyword,
            "cannot be async: a worker runs one call at a time, on a separate thread; block on the future inside",
        );
    }
    if let Some(keyword) = &signature.constness {
        return refuse(keyword, "cannot be const: it is called while the program runs");
    }
    if let Some(keyword) = &signature.abi {
        return refuse(keyword, "must be a plain Rust function; call the other function inside");
    }
    if !signature.generics.params.is_empty() {
        return refuse(
            &signature.generics,
            "cannot have generic parameters or lifetimes: workers find it by its name; write one for each type, which \
             calls the generic one",
        );
    }
    if let Some(clause) = &signature.generics.where_clause {
        return refuse(clause, "cannot have a where clause, because it has no generic parameters");
    }
    if let Some(variadic) = &signature.variadic {
        return refuse(variadic, "has a fixed number of parameters");
    }
    Ok(())
}

/// Returns the return type of the function, or an error if the type cannot be a `Result`.
fn output(signature: &Signature) -> Result<&Type> {
    const RESULT: &str =
        "a remote function returns a Result: distribute::Result<f32>, for example, or distribute::Result<()>";
    match &signature.output {
        ReturnType::Default => Err(Error::new_spanned(signature, RESULT)),
        ReturnType::Type(_, ty) => match &**ty {
            Type::Tuple(_) | Type::Reference(_) | Type::ImplTrait(_) | Type::Never(_) | Type::Array(_) => {
                Err(Error::new_spanned(ty, RESULT))
            }
            ty => Ok(ty),
        },
    }
}

/// Returns the types of all parameters. The first is the worker.
fn parameters(signature: &Signature) -> Result<Vec<&Type>> {
    const FIRST: &str =
        "the first parameter of a remote function is the worker that runs it: `worker: &WorkerContext`";
    let mut types = Vec::new();
    for input in &signature.inputs {
        match input {
            FnArg::Receiver(receiver) => {
                return Err(Error::new_spanned(
                    receiver,
                    "a remote function cannot be a method: workers find it by its name; write a function with \
                     parameters after `worker: &WorkerContext`",
                ));
            }
            FnArg::Typed(PatType { ty, .. }) => types.push(&**ty),
        }
    }
    match types.first() {
        None => return Err(Error::new_spanned(signature, FIRST)),
        Some(first) if !is_context(first) => return Err(Error::new_spanned(first, FIRST)),
        Some(_) => (),
    }
    if let Some(more) = types.get(1 + MAX_PARAMETERS) {
        let text = format!(
            "a remote function has at most {MAX_PARAMETERS} parameters after the worker; combine several values in a struct"
        );
        return Err(Error::new_spanned(more, text));
    }
    Ok(types)
}

fn is_context(ty: &Type) -> bool {
    let Type::Reference(reference) = ty else { return false };
    let Type::Path(path) = &*reference.elem else { return false };
    reference.mutability.is_none() && path.path.segments.last().is_some_and(|last| last.ident == CONTEXT)
}

/// The type of a parameter, and whether it is passed by reference.
struct Kind<'a> {
    of: &'a Type,
    by_reference: bool,
}

impl Kind<'_> {
    /// Returns the name of a parameter in the expansion, and the expression that passes it to the function.
    fn passed((number, kind): (usize, &Self)) -> (Ident, TokenStream) {
        let name = quote::format_ident!("__{number}");
        let passed = if kind.by_reference { quote!(&#name) } else { quote!(#name) };
        (name, passed)
    }
}

fn kind(ty: &Type) -> Result<Kind<'_>> {
    let refuse = |text: &str| Err(Error::new_spanned(ty, text));
    match ty {
        Type::Reference(reference) if reference.mutability.is_some() => refuse(
            "a value that a worker keeps is shared by its calls: take `&T`, and put changing state in a Mutex or an atomic",
        ),
        Type::Reference(reference) if reference.lifetime.is_some() => {
            refuse("a value that a worker keeps may be dropped after the call: take `&T`, without a lifetime")
        }
        Type::Reference(reference) => match &*reference.elem {
            Type::Path(path) if path.path.is_ident("str") => refuse(
                "`&T` is a value that a worker keeps, from create_per_worker_value, and a `str` cannot be kept; take \
                 a `String`, which is sent as a value",
            ),
            Type::Slice(_) => refuse(
                "`&T` is a value that a worker keeps, from create_per_worker_value, and a slice cannot be kept; take \
                 a `Vec`, which is sent as a value",
            ),
            Type::TraitObject(_) => refuse(
                "a worker finds kept values by their type; take `&T` for a named type T, such as `&Box<dyn …>`",
            ),
            of => Ok(Kind { of, by_reference: true }),
        },
        Type::ImplTrait(_) => {
            refuse("a remote function cannot have generic parameters; name the type that is sent")
        }
        of => Ok(Kind { of, by_reference: false }),
    }
}

/// The attributes of the function, assigned to the items of the expansion.
#[derive(Default)]
struct Attributes<'a> {
    of_type: Vec<&'a Attribute>,
    of_all: Vec<&'a Attribute>,
    of_function: Vec<&'a Attribute>,
}

impl<'a> Attributes<'a> {
    fn of(all: &'a [Attribute]) -> Self {
        let mut sorted = Self::default();
        for attribute in all {
            let is = |name: &str| attribute.path().is_ident(name);
            let place = match &attribute.meta {
                _ if is("cfg") => &mut sorted.of_all,
                Meta::NameValue(_) if is("doc") => &mut sorted.of_type,
                _ if is("doc") || is("deprecated") => &mut sorted.of_type,
                _ => &mut sorted.of_function,
            };
            place.push(attribute);
        }
        sorted
    }
}

#[cfg(test)]
mod tests;
