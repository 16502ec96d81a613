#!/usr/bin/env bash
# Makes .venv, with the ROS 2 that is sourced or, where none is, with ROS 2 from Python wheels.
# Quick when nothing changed. PYTHON names the interpreter (default python3).
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

venv=.venv
log=$venv/setup.log
made=$venv/.setup-made   # what .venv was made from; another interpreter or ROS needs a new one
done=$venv/.setup-done   # what was installed into it; written last
python=${PYTHON:-python3}
apt_hint='on Debian/Ubuntu: sudo apt install python3-venv'
ros_wheels='ros-kilted-rclpy ros-kilted-rmw-fastrtps-cpp ros-kilted-sensor-msgs
  ros-kilted-std-srvs ros-kilted-trajectory-msgs ros-kilted-diagnostic-msgs'

# A parent process that runs from another environment of ROS wheels leaves its mark.
unset _ROS_WHEELS_BOOTSTRAP_COMPLETE

say() { echo "setup: $*"; }
fail() {
  echo "setup: error: $*" >&2
  exit 1
}

# Prints version and installation of an interpreter, also of one too old to use.
identify() {
  "$1" -c 'import sys; print("%d.%d %s" % (sys.version_info[:2] + (getattr(sys, "base_prefix", sys.prefix),)))'
}

# The rclpy of an active environment of wheels is not a sourced ROS 2.
has_ros() {
  [ -n "${ROS_DISTRO:-}" ] && "$python" -c 'import rclpy, sys
sys.exit(sys.prefix != sys.base_prefix and rclpy.__file__.startswith(sys.prefix))' >/dev/null 2>&1
}

check_host() {
  command -v "$python" >/dev/null 2>&1 ||
    fail "$python: not found; install Python 3.10 to 3.13 ($apt_hint) or name one: make setup PYTHON=python3.12"
  local found
  found=$(identify "$python" 2>/dev/null) ||
    fail "$python: does not start; name another one: make setup PYTHON=python3.12"
  version=${found%% *}
  base=${found#* }
  local major=${version%%.*} minor=${version#*.}
  if [ "$major" -ne 3 ] || [ "$minor" -lt 10 ]; then
    fail "$python is Python $version, needed is 3.10 or newer; name another one: make setup PYTHON=python3.12"
  fi
  if has_ros; then
    ros=$ROS_DISTRO
  elif [ -n "${ROS_DISTRO:-}" ] && [ -n "${AMENT_PREFIX_PATH:-}" ]; then
    fail "ROS 2 $ROS_DISTRO is sourced but $python ($version) cannot import rclpy; name ROS's own: make setup PYTHON=/usr/bin/python3, or use a shell without ROS"
  else
    ros=wheels
    if [ "$minor" -gt 13 ]; then
      fail "$python is Python $version, the ROS 2 wheels need 3.10 to 3.13; name one: make setup PYTHON=python3.12, or source a ROS 2"
    fi
    local machine
    machine=$(uname -sm)
    [ "$machine" = 'Linux x86_64' ] ||
      fail "this machine is $machine, the ROS 2 wheels need Linux x86_64; source a ROS 2 first"
  fi
}

# True where .venv can be built upon: made from this interpreter and ROS, and it runs.
fits() {
  "$venv/bin/python" -m pip --version >/dev/null 2>&1 || return
  [ -e "$made" ] || adopt
  [ "$(cat "$made" 2>/dev/null)" = "$key_made" ]
}

# An environment that was made by hand in this place is used where it is of the right kind.
adopt() {
  local site=false
  [ "$ros" = wheels ] || site=true
  if [ "$(identify "$venv/bin/python")" = "$version $base" ] &&
    grep -q "^include-system-site-packages = $site" "$venv/pyvenv.cfg" 2>/dev/null; then
    printf '%s\n' "$key_made" >"$made"
  fi
}

make_venv() {
  "$python" -c 'import venv, ensurepip' >/dev/null 2>&1 ||
    fail "$python has no venv module; $apt_hint (or python$version-venv)"
  local site='' output
  [ "$ros" = wheels ] || site=--system-site-packages
  # shellcheck disable=SC2086  # no option when empty
  output=$("$python" -m venv --clear $site "$venv" 2>&1) ||
    fail "could not make $PWD/$venv: $(tail -n 1 <<<"$output"); $apt_hint (or python$version-venv)"
  printf '%s\n' "$key_made" >"$made"
}

# Runs pip, all of its output in the log, with a sign of life every 30 s.
run_pip() {
  local started=$SECONDS told=$SECONDS
  "$venv/bin/python" -m pip --disable-pip-version-check install -q --no-input \
    -c constraints.txt "$@" >>"$log" 2>&1 &
  local pip=$!
  trap 'kill $pip 2>/dev/null; fail interrupted' INT TERM
  while kill -0 $pip 2>/dev/null; do
    sleep 0.1
    if [ $((SECONDS - told)) -ge 30 ]; then
      told=$SECONDS
      say "  still at it, $((SECONDS - started)) s"
    fi
  done
  trap - INT TERM
  wait $pip || explain_pip
}

explain_pip() {
  local network='NewConnectionError|Temporary failure in name resolution|ConnectTimeout|ReadTimeout|ProxyError|Network is unreachable|NameResolutionError|Connection refused|SSLError'
  if grep -qE "$network" "$log"; then
    fail "pip cannot reach the package index: no network? (full log: $PWD/$log)"
  fi
  if grep -q 'No space left on device' "$log"; then
    fail "the disk is full: the environment takes about 3 GB (full log: $PWD/$log)"
  fi
  local last
  last=$(grep -E '^ERROR' "$log" | tail -n 1 | cut -c 1-200)
  fail "pip failed: ${last:-no reason given} (full log: $PWD/$log)"
}

check_install() {
  local output
  # An Imu holds fixed-size arrays: their C code is where a numpy that does not fit shows.
  output=$("$venv/bin/python" -c '
import dlnn_ros.config
from rclpy.serialization import serialize_message
from rclpy.experimental import EventsExecutor
from sensor_msgs.msg import Imu
serialize_message(Imu())' 2>&1) ||
    fail "the packages are installed but do not work: $(tail -n 1 <<<"$output" | cut -c 1-200)"
  [ -x "$venv/bin/dlnn" ] || fail "$PWD/$venv/bin/dlnn was not installed (full log: $PWD/$log)"
}

check_host
key_made="$PWD | $base | Python $version | ROS $ros"
key_done="$key_made | $(cat setup.py setup.cfg constraints.txt tools/setup.sh | cksum)"
if [ "$(cat "$done" 2>/dev/null)" = "$key_done" ] && [ -x "$venv/bin/python" ]; then
  exit 0
fi

started=$SECONDS
if [ "$ros" = wheels ]; then
  say "Python $version, ROS 2 Kilted from wheels"
  wheels=$ros_wheels
else
  say "Python $version, ROS 2 $ros as sourced"
  wheels=
fi
if ! fits; then
  if [ -e "$made" ]; then
    say "$venv was made for: $(cat "$made")"
  fi
  say "making $PWD/$venv"
  make_venv
fi
rm -f "$done"
: >"$log"
say "installing the versions of constraints.txt, 2 to 5 minutes the first time (log: $venv/setup.log)"
run_pip 'setuptools<80' wheel
# shellcheck disable=SC2086  # a list of names
run_pip --no-build-isolation -e '.[dev]' $wheels
check_install
printf '%s\n' "$key_done" >"$done"
say "done in $((SECONDS - started)) s"
