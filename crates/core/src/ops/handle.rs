//! The types of the kinds of strategies, which deref to [`Strategy`](crate::Strategy).

/// Implements a type for a kind of strategy, with the [`Strategy`](crate::Strategy) as its only field.
#[doc(hidden)]
#[macro_export]
macro_rules! handle {
    ($name:ident) => {
        impl std::ops::Deref for $name {
            type Target = $crate::Strategy;
            fn deref(&self) -> &$crate::Strategy {
                &self.0
            }
        }

        impl From<$name> for $crate::Strategy {
            fn from(strategy: $name) -> $crate::Strategy {
                strategy.0
            }
        }

        impl $crate::checkpoint::Checkpointed for $name {
            fn save(
                &self,
                prefix: &str,
                writer: &mut $crate::checkpoint::Writer,
            ) -> $crate::internal::Result<()> {
                $crate::checkpoint::Checkpointed::save(&self.0, prefix, writer)
            }
            fn restore<'a>(
                &'a self,
                prefix: &str,
                from: &$crate::checkpoint::Reader,
            ) -> $crate::internal::Result<$crate::checkpoint::Restore<'a>> {
                $crate::checkpoint::Checkpointed::restore(&self.0, prefix, from)
            }
            fn strategy(&self) -> Option<&$crate::Strategy> {
                Some(&self.0)
            }
        }
    };
}
