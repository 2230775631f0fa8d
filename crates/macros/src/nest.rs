//! The expansion of `#[derive(Nest)]`.

use proc_macro2::TokenStream;
use quote::{format_ident, quote};
use syn::ext::IdentExt;
use syn::{Data, DeriveInput, Error, Fields, Generics, Path, Result, parse_quote};

/// Returns the implementation of `Nest` for a struct.
pub fn expand(input: DeriveInput) -> Result<TokenStream> {
    let fields = match &input.data {
        Data::Struct(data) => &data.fields,
        Data::Enum(data) => {
            return Err(Error::new_spanned(
                data.enum_token,
                "an enum cannot be a Nest: its variants have different structures, but all replicas need the same; \
                 use a struct, with an Option for fields that may be missing",
            ));
        }
        Data::Union(data) => {
            return Err(Error::new_spanned(data.union_token, "a union cannot be a Nest; use a struct"));
        }
    };
    let given = tensor_crate(&input)?;
    let tensor = given.clone().unwrap_or_else(|| parse_quote!(::distribute::tensor));
    let (into_tree, from_tree, dtypes) = match fields {
        Fields::Named(_) => named(fields, &tensor),
        Fields::Unnamed(_) | Fields::Unit => unnamed(fields, &tensor),
    };

    let mut generics = input.generics.clone();
    for parameter in input.generics.type_params() {
        let parameter = &parameter.ident;
        generics.make_where_clause().predicates.push(parse_quote!(#parameter: #tensor::Nest));
    }
    let name = &input.ident;
    let (impl_generics, type_generics, where_clause) = generics.split_for_impl();
    // The traits of values are those of `distribute`. Code that names another crate may not depend on `distribute`.
    let values = if given.is_none() { values(&input, &generics) } else { TokenStream::new() };
    Ok(quote! {
        #values

        #[automatically_derived]
        impl #impl_generics #tensor::Nest for #name #type_generics #where_clause {
            type Batch = Self;

            fn into_tree(self) -> #tensor::Tree<#tensor::Leaf> {
                #into_tree
            }
            fn from_tree(tree: #tensor::Tree<#tensor::Leaf>) -> #tensor::Result<Self> {
                #from_tree
            }
            fn scalar_dtypes() -> ::std::option::Option<#tensor::Tree<#tensor::DType>> {
                #dtypes
            }
        }
    })
}

/// Returns the implementations of `Distributed` and `Reducible`, in which all replicas get the same struct.
fn values(input: &DeriveInput, generics: &Generics) -> TokenStream {
    let mut generics = generics.clone();
    for parameter in input.generics.type_params() {
        let parameter = &parameter.ident;
        generics.make_where_clause().predicates.push(parse_quote!(#parameter: ::std::marker::Send));
    }
    let name = &input.ident;
    let (impl_generics, type_generics, where_clause) = generics.split_for_impl();
    quote! {
        #[automatically_derived]
        impl #impl_generics ::distribute::values::Distributed for #name #type_generics #where_clause {
            type Local = Self;

            fn split(self, replicas: usize) -> ::distribute::Result<::std::vec::Vec<Self>> {
                ::distribute::values::derived::split(self, replicas)
            }
        }

        #[automatically_derived]
        impl #impl_generics ::distribute::values::Reducible for #name #type_generics #where_clause {
            type Nest = Self;

            fn into_parts(self, _: &'static str, _: usize) -> ::distribute::Result<::distribute::values::derived::Parts> {
                ::std::result::Result::Ok(::distribute::values::derived::parts(self))
            }
        }
    }
}

/// Returns the path of the crate that defines `Nest`; `None` if no `#[nest(crate = path)]` specifies one. The code then
/// uses the path for users of `distribute`.
fn tensor_crate(input: &DeriveInput) -> Result<Option<Path>> {
    let mut path = None;
    for attribute in input.attrs.iter().filter(|a| a.path().is_ident("nest")) {
        attribute.parse_nested_meta(|meta| {
            if !meta.path.is_ident("crate") {
                return Err(meta.error("the only argument is `crate = path`"));
            }
            path = Some(meta.value()?.call(Path::parse_mod_style)?);
            Ok(())
        })?;
    }
    Ok(path)
}

/// Returns the bodies of `into_tree`, `from_tree` and `scalar_dtypes` for a struct with named fields, which becomes a
/// map keyed by field name.
fn named(fields: &Fields, tensor: &Path) -> (TokenStream, TokenStream, TokenStream) {
    let types = fields.iter().map(|f| &f.ty);
    let idents: Vec<_> = fields.iter().filter_map(|f| f.ident.as_ref()).collect();
    // A raw identifier, `r#type`, is the field `type`.
    let names: Vec<String> = idents.iter().map(|i| i.unraw().to_string()).collect();
    let into = quote! {
        #tensor::Tree::Dict([#((::std::string::String::from(#names), #tensor::Nest::into_tree(self.#idents))),*].into())
    };
    let from = quote! {
        let mut fields = #tensor::nest::Fields::named(tree, &[#(#names),*])?;
        ::std::result::Result::Ok(Self { #(#idents: fields.take(#names)?),* })
    };
    let dtypes = quote! {
        ::std::option::Option::Some(#tensor::Tree::Dict(
            [#((::std::string::String::from(#names), <#types as #tensor::Nest>::scalar_dtypes()?)),*].into()
        ))
    };
    (into, from, dtypes)
}

/// Returns the bodies of `into_tree`, `from_tree` and `scalar_dtypes` for a tuple struct or a unit struct, which
/// becomes a tuple.
fn unnamed(fields: &Fields, tensor: &Path) -> (TokenStream, TokenStream, TokenStream) {
    let types: Vec<_> = fields.iter().map(|f| &f.ty).collect();
    let count = types.len();
    let members: Vec<_> = fields.members().collect();
    let variables: Vec<_> = (0..count).map(|i| format_ident!("field{i}")).collect();
    let into = quote! {
        let Self { #(#members: #variables),* } = self;
        #tensor::Tree::Tuple(::std::vec![#(#tensor::Nest::into_tree(#variables)),*])
    };
    let build = quote!(Self { #(#members: fields.next()?),* });
    let from = quote! {
        #[allow(unused_mut, unused_variables)]
        let mut fields = #tensor::nest::Fields::unnamed(tree, #count)?;
        ::std::result::Result::Ok(#build)
    };
    let dtypes = quote! {
        ::std::option::Option::Some(#tensor::Tree::Tuple(::std::vec![#(<#types as #tensor::Nest>::scalar_dtypes()?),*]))
    };
    (into, from, dtypes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(input: TokenStream) -> String {
        expand(syn::parse2(input).unwrap()).unwrap_err().to_string()
    }

    #[test]
    fn types_without_one_structure_are_compile_errors() {
        assert!(
            error(quote!(
                enum Loss {
                    Mean(Tensor),
                    None,
                }
            ))
            .contains("all replicas need the same")
        );
        assert!(error(quote!(union Bits { a: u32, b: f32 })).contains("use a struct"));
    }

    #[test]
    fn unknown_arguments_are_a_compile_error() {
        assert!(
            error(quote!(
                #[nest(skip)]
                struct A;
            ))
            .contains("the only argument is `crate = path`")
        );
    }

    #[test]
    fn code_refers_to_distribute_by_default() {
        let text = expand(parse_quote!(
            struct A {
                x: f32,
            }
        ))
        .unwrap()
        .to_string();
        assert!(text.contains(":: distribute :: tensor :: Nest for A"), "{text}");
        assert!(text.contains(":: distribute :: values :: Distributed for A"), "{text}");
        let text = expand(parse_quote!(
            #[nest(crate = crate::mine)]
            struct A<'a, T: Clone>(&'a T);
        ))
        .unwrap()
        .to_string();
        assert!(
            text.contains("crate :: mine :: Nest for A < 'a , T > where T : crate :: mine :: Nest"),
            "{text}"
        );
        assert!(!text.contains(":: distribute"), "{text}");
    }
}
