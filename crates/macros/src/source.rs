//! A hash of source code that is equal on all machines and compilers.

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// Returns the 64-bit FNV-1a hash of the tokens. It does not depend on comments, white space or the compiler.
pub fn hash(tokens: TokenStream) -> u64 {
    let mut hash = Fnv(0xcbf2_9ce4_8422_2325);
    hash.tokens(tokens);
    hash.0
}

struct Fnv(u64);

impl Fnv {
    fn bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    /// Adds the text of a token and an end marker.
    fn token(&mut self, text: &str) {
        self.bytes(text.as_bytes());
        self.bytes(&[0xff]);
    }

    fn tokens(&mut self, tokens: TokenStream) {
        for tree in tokens {
            match tree {
                TokenTree::Ident(ident) => self.token(&ident.to_string()),
                TokenTree::Punct(punct) => self.token(punct.as_char().encode_utf8(&mut [0; 4])),
                TokenTree::Literal(literal) => self.token(&literal.to_string()),
                TokenTree::Group(group) => {
                    let (open, close) = match group.delimiter() {
                        Delimiter::Parenthesis => ("(", ")"),
                        Delimiter::Brace => ("{", "}"),
                        Delimiter::Bracket => ("[", "]"),
                        Delimiter::None => ("", ""),
                    };
                    self.token(open);
                    self.tokens(group.stream());
                    self.token(close);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> u64 {
        hash(text.parse().unwrap())
    }

    #[test]
    fn the_function_is_that_of_fowler_noll_and_vo() {
        let mut fnv = Fnv(0xcbf2_9ce4_8422_2325);
        fnv.bytes(b"foobar");
        assert_eq!(fnv.0, 0x85944171f73967e8);
    }

    #[test]
    fn space_and_comments_do_not_count_and_all_else_does() {
        let text = "fn f(x: f32) -> f32 { x * 2. }";
        assert_eq!(of(text), of("fn  f ( x : f32 )->f32 {\n  // twice\n  x*2.\n}"));
        for other in [
            "fn g(x: f32) -> f32 { x * 2. }",
            "fn f(x: f32) -> f32 { x * 3. }",
            "fn f(x: f32) -> f32 { x + 2. }",
            "fn f(x: f32) -> f32 { (x * 2.) }",
            "fn f(x: f32) -> f32 [ x * 2. ]",
            "fn f(x: f32) -> f32 { x * 2.; }",
        ] {
            assert_ne!(of(text), of(other), "{other}");
        }
        assert_ne!(of("ab c"), of("a bc"));
        assert_ne!(of("{ a } b"), of("{ a b }"));
    }
}
