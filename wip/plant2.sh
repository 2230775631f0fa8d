cd /work/w/parts
run() { echo "== $1"; timeout 200 /work/helpers/in parts cargo test -p distribute-checkpoint --test it -- parts:: killed:: 2>&1 | grep -E "^error|FAILED|test result|^test .*FAILED" | head -12; git checkout -q crates/checkpoint; }
pl() { python3 - "$@" <<'P'
import sys
p,a,b=sys.argv[1:]; s=open(p).read(); assert s.count(a)==1,a; open(p,'w').write(s.replace(a,b))
P
}
pl crates/checkpoint/src/parts.rs "own.iter().any(|of| !added.is_beside(of))" "own.iter().filter(|_| false).any(|of| !added.is_beside(of))"
run "3 rows twice"
pl crates/checkpoint/src/parts.rs "            _ => Error::io(operation, path)(error)," "            _ => { let _ = (operation, path); not_shared(error.to_string()) }"
run "4 any failure is not shared"
pl crates/checkpoint/src/save.rs "folder.check(&of_others)" "folder.check(&of_others).or(Ok(()))"
run "5 list not checked"
pl crates/checkpoint/src/save.rs "(*write)(&folder, progress)" "(*write)(&folder, &mut || Ok(()))"
run "9 no progress"
echo "== none"; timeout 200 /work/helpers/in parts cargo test -p distribute-checkpoint 2>&1 | grep -E "^error|FAILED|test result"
date
