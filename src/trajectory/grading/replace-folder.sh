# Arguments: folder, name of a staging folder in it. Replaces the folder's entries by those of the staging folder.
cd -- "$1" || exit 1
for f in * .[!.]* ..?*; do
  [ "$f" = "$2" ] || [ ! -e "$f" ] && [ ! -L "$f" ] || rm -rf -- "./$f" || exit 1
done
for f in "$2"/* "$2"/.[!.]* "$2"/..?*; do
  [ ! -e "$f" ] && [ ! -L "$f" ] || mv -- "$f" . || exit 1
done
rmdir -- "$2"
