"""The shared ledger's steps as Lua: each is one atomic change of all scopes of a request.

They follow `policies.ledger` line by line; a test runs both on the same random requests and compares every answer. All
keys of a ledger hold the same hash tag, so that they lie on one node of a cluster:

    {prefix}:scope:<kind>:<id>   what a scope uses, packed: in flight, windows, budget. Expires when nothing of it counts
    {prefix}:leases:<owner>      live leases of one gateway process: what each has reserved
    {prefix}:owners              gateway processes, by the time at which their leases end unless they give a sign of life

Scripts write scopes first and leases last, and look at everything before they write: a server that is out of memory refuses
the first write, and nothing is half done. They need Redis 6.2 or a server that speaks as it does.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha1

_COMMON = """
local SLOTS = 60
local ARGV = cjson.decode(ARGV[1])
local owners_key = KEYS[1]
local window_s = tonumber(ARGV[2])
local slots_per_s = SLOTS / window_s

local now = tonumber(ARGV[1])
if now == nil then
  local time = redis.call('TIME')
  now = tonumber(time[1]) + tonumber(time[2]) / 1e6
end
local now_us = math.floor(now * 1e6)
local this_slot = math.floor(now * slots_per_s)

-- One text instead of many integers, which clients read one by one.
local function answer(values)
  for i, value in ipairs(values) do values[i] = string.format('%.0f', value) end
  return table.concat(values, ',')
end

-- A window is {slot, amount, slot, amount, ...}, oldest first.
local function advance(window)
  local slot = math.max(this_slot, window[#window - 1] or 0)
  local kept, total = {}, 0
  for i = 1, #window, 2 do
    if slot - window[i] <= SLOTS then
      kept[#kept + 1] = window[i]
      kept[#kept + 1] = window[i + 1]
      total = total + window[i + 1]
    end
  end
  return kept, total
end

local function add(window, amount)
  local slot = math.max(this_slot, window[#window - 1] or 0)
  if window[#window - 1] == slot then
    window[#window] = window[#window] + amount
  else
    window[#window + 1] = slot
    window[#window + 1] = amount
  end
  return slot
end

local function take_back(window, amount, slot)
  for i = 1, #window, 2 do
    if window[i] == slot then window[i + 1] = window[i + 1] - amount end
  end
end

local function forgotten_in_us(slot)
  return math.max(0, math.ceil(((slot + SLOTS + 1) / slots_per_s - now) * 1e6))
end

local function wait_us(window, excess)
  for i = 1, #window, 2 do
    excess = excess - window[i + 1]
    if excess <= 0 then return forgotten_in_us(window[i]) end
  end
  return forgotten_in_us(math.max(this_slot, window[#window - 1] or 0))
end

local function reset_us(window)
  if #window == 0 then return 0 end
  return forgotten_in_us(window[#window - 1])
end

-- n, kv: requests and KV tokens in flight; held, spent: nano-dollars; period_s: 0 without one; rpm, tpm: windows.
local function load(key)
  local raw = redis.call('GET', key)
  local scope = {n = 0, kv = 0, held = 0, spent = 0, start_s = 0, period_s = 0, rpm = {}, tpm = {}}
  if raw then scope = cmsgpack.unpack(raw) end
  scope.rpm, scope.num_requests = advance(scope.rpm)
  scope.tpm, scope.num_tokens = advance(scope.tpm)
  return scope
end

local function enter_period(scope, period_s)
  scope.period_s = period_s
  if period_s > 0 and now - scope.start_s >= period_s then
    scope.start_s = math.floor(now / period_s) * period_s
    scope.spent = 0
  end
end

local function save(key, scope)
  scope.num_requests, scope.num_tokens = nil, nil
  local packed = cmsgpack.pack(scope)
  local ttl_s = window_s * 1.1
  if scope.spent > 0 then
    if scope.period_s > 0 then ttl_s = math.max(ttl_s, scope.start_s + scope.period_s - now) else ttl_s = nil end
  end
  if scope.n == 0 and ttl_s then
    redis.call('SET', key, packed, 'PX', math.ceil(ttl_s * 1000))
  else
    redis.call('SET', key, packed)
  end
end

-- A lease is {tokens, cost, {key, slot of its tokens or -1, whether a budget is reserved, slot of its request or -1}, ...}.
local function end_lease(lease, tokens, cost, undo)
  for i = 3, #lease do
    local key, slot, has_budget = lease[i][1], lease[i][2], lease[i][3]
    local scope = load(key)
    scope.n = scope.n - 1
    scope.kv = scope.kv - lease[1]
    if slot >= 0 then
      if tokens < lease[1] then take_back(scope.tpm, lease[1] - tokens, slot) end
      if tokens > lease[1] then add(scope.tpm, tokens - lease[1]) end
    end
    if undo and lease[i][4] >= 0 then take_back(scope.rpm, 1, lease[i][4]) end
    if has_budget == 1 then
      enter_period(scope, scope.period_s)
      scope.held = scope.held - lease[2]
      scope.spent = scope.spent + cost
    end
    save(key, scope)
  end
end
"""

_ACQUIRE = """
local leases_key = KEYS[2]
local deadline_s, owner, lease_id, ttl_s = tonumber(ARGV[3]), ARGV[4], ARGV[5], tonumber(ARGV[6])
local tokens, cost, mode = tonumber(ARGV[7]), tonumber(ARGV[8]), ARGV[9]
if deadline_s and now > deadline_s then return answer({-1, now_us}) end

local is_held = redis.call('HEXISTS', leases_key, lease_id) == 1
local scopes, refused = {}, {0, now_us}
local function refuse(i, dimension, used, wait)
  for _, value in ipairs({i, dimension, used, wait}) do refused[#refused + 1] = value end
end
for i = 1, #KEYS - 2 do
  local first = 9 + (i - 1) * 6
  local scope = load(KEYS[i + 2])
  scopes[i] = scope
  local limits = {}
  for j = 1, 6 do limits[j] = tonumber(ARGV[first + j]) end
  if limits[5] >= 0 then enter_period(scope, limits[6]) end
  scope.limits = limits
  if limits[1] >= 0 and scope.num_requests + 1 > limits[1] then
    refuse(i, 1, scope.num_requests, wait_us(scope.rpm, scope.num_requests + 1 - limits[1]))
  end
  if limits[2] >= 0 and scope.num_tokens + tokens > limits[2] then
    refuse(i, 2, scope.num_tokens, wait_us(scope.tpm, scope.num_tokens + tokens - limits[2]))
  end
  if limits[3] >= 0 and scope.n + 1 > limits[3] then refuse(i, 3, scope.n, -1) end
  if limits[4] >= 0 and scope.kv + tokens > limits[4] then refuse(i, 4, scope.kv, -1) end
  if limits[5] >= 0 and cost > 0 and scope.spent + scope.held + cost > limits[5] then
    local wait = -1
    if limits[6] > 0 then wait = math.max(0, math.ceil((scope.start_s + limits[6] - now) * 1e6)) end
    refuse(i, 5, scope.spent + scope.held, wait)
  end
end
if mode == 'check' and not is_held and #refused > 2 then return answer(refused) end

local lease, reply = {tokens, cost}, {1, now_us}
for i, scope in ipairs(scopes) do
  local limits, slot, has_budget, request_slot = scope.limits, -1, 0, -1
  scope.limits = nil
  if not is_held then
    scope.n = scope.n + 1
    scope.kv = scope.kv + tokens
    if mode == 'check' and limits[1] >= 0 then
      request_slot = add(scope.rpm, 1)
      scope.num_requests = scope.num_requests + 1
    end
    if mode == 'check' and limits[2] >= 0 then
      slot = add(scope.tpm, tokens)
      scope.num_tokens = scope.num_tokens + tokens
    end
    if mode ~= 'in_flight' and limits[5] >= 0 then
      scope.held = scope.held + cost
      has_budget = 1
    end
    lease[#lease + 1] = {KEYS[i + 2], slot, has_budget, request_slot}
  end
  for _, value in ipairs({scope.num_requests, reset_us(scope.rpm), scope.num_tokens, reset_us(scope.tpm), scope.spent}) do
    reply[#reply + 1] = value
  end
  if not is_held then save(KEYS[i + 2], scope) end
end
if not is_held then
  redis.call('ZADD', owners_key, now + ttl_s, owner)
  redis.call('HSET', leases_key, lease_id, cmsgpack.pack(lease))
end
return answer(reply)
"""

_END = """
local leases_key, lease_id = KEYS[2], ARGV[3]
local raw = redis.call('HGET', leases_key, lease_id)
if not raw then return answer({0, now_us}) end
end_lease(cmsgpack.unpack(raw), tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6] == 1)
redis.call('HDEL', leases_key, lease_id)
return answer({1, now_us})
"""

_HEARTBEAT = """
local leases_key, owner, ttl_s, leases_prefix = KEYS[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
redis.call('ZADD', owners_key, now + ttl_s, owner)
local num_reaped = 0
local dead = redis.call('ZRANGEBYSCORE', owners_key, '-inf', now, 'LIMIT', 0, 1)[1]
if dead then
  local dead_key = leases_prefix .. dead
  local found = redis.call('HRANDFIELD', dead_key, 100, 'WITHVALUES')
  for i = 1, #found, 2 do
    local lease = cmsgpack.unpack(found[i + 1])
    end_lease(lease, lease[1], lease[2])
    redis.call('HDEL', dead_key, found[i])
    num_reaped = num_reaped + 1
  end
  if redis.call('HLEN', dead_key) == 0 then redis.call('ZREM', owners_key, dead) end
end
return answer({1, now_us, redis.call('HLEN', leases_key), num_reaped, redis.call('ZCOUNT', owners_key, '-inf', now)})
"""

_RESTORE = """
local limit, period_s, spent = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local scope = load(KEYS[2])
enter_period(scope, period_s)
scope.spent = math.max(scope.spent, spent)
save(KEYS[2], scope)
return answer({1, now_us, scope.spent})
"""

_STATUS = """
local scope = load(KEYS[2])
return answer({1, now_us, scope.n, scope.kv, scope.held, scope.spent, scope.num_requests, scope.num_tokens})
"""


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script and the digest that servers know it by once they have seen it.

    Arguments are one JSON array, called `ARGV` below. All have `KEYS[1]` = owners, `ARGV[1]` = Unix time in seconds or ""
    for the server's clock, `ARGV[2]` = length of the windows in seconds, and answer with integers, separated by commas: a
    code, the time in microseconds, and what they found out.
    """

    name: str
    body: str
    text: str = field(init=False, repr=False)
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        text = _COMMON + self.body
        object.__setattr__(self, "text", text)
        object.__setattr__(self, "digest", sha1(text.encode(), usedforsecurity=False).hexdigest())


ACQUIRE = Script("acquire", _ACQUIRE)
"""KEYS: owners, leases of the owner, scopes. ARGV: time, window, deadline or "", owner, lease, TTL, tokens, cost, mode; for
each scope rpm, tpm, max_parallel, kv_tokens, budget (-1 for none), budget period (0 for none). Mode `check` admits; `spend`
and `in_flight` count without a check a request that runs already: what it holds, with or without its reservation.
Answers 1 and five values per scope; or 0 and (scope, dimension, used, wait in us or -1) for each limit that denies; or -1
after the deadline. A lease that is held already is granted again and changes nothing."""

END = Script("end", _END)
"""KEYS: owners, leases of the owner. ARGV: time, window, lease, tokens and nano-dollars it took, 1 if it was never given to
anybody: then it does not count as a request either. Answers 1, or 0 if it had ended."""

HEARTBEAT = Script("heartbeat", _HEARTBEAT)
"""KEYS: owners, leases of the owner. ARGV: time, window, owner, TTL, what keys of leases begin with. Ends up to 100 leases
of one dead owner, as if they had taken their estimate. Answers with its own leases, those ended, dead owners."""

RESTORE = Script("restore", _RESTORE)
"""KEYS: owners, scope. ARGV: time, window, budget, period, nano-dollars spent. Never lowers what is known to be spent."""

STATUS = Script("status", _STATUS)
"""KEYS: owners, scope. ARGV: time, window. Answers with what a scope uses: requests, KV tokens, nano-dollars reserved and
spent, requests and tokens of the window."""
