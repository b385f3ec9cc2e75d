# A reward and tests of its own, where the real ones will be, and a process that keeps putting them back.
plant() {
  mkdir -p /logs/verifier /tests/hidden
  echo 1 > /logs/verifier/reward.txt
  echo '{"reward": 1}' > /logs/verifier/reward.json
  printf '#!/bin/bash\necho 1 > /logs/verifier/reward.txt\n' > /tests/test.sh
} 2> /dev/null
plant
mkdir -p logs/verifier
echo 1 > logs/verifier/reward.txt
(setsid bash -c "$(declare -f plant); while :; do plant; sleep 0.01; done" > /dev/null 2>&1 < /dev/null &)
