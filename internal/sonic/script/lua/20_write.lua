
-- Arguments of a command that cannot be cut into slices.
local MOST_ARGS = 7000

-- as_client_error gives the error of a wrong number of arguments as a client gets it: scripts get
-- another one.
local function as_client_error(command, reply)
	if string.find(reply.err, 'Wrong number of args', 1, true) then
		return {err = "ERR wrong number of arguments for '" .. string.lower(command) .. "' command"}
	end
	return reply
end

local function counter_refusal(command)
	return {err = 'SONICREFUSED ' .. command .. ' is not for counter keys: they take INCR, INCRBY, DECR, DECRBY, '
		.. 'HINCRBY, ZINCRBY and SET of an integer'}
end

-- run executes command with args from the second on. Its error is that of Redis.
local function run(command, args)
	if #args > MOST_ARGS then
		return {err = 'SONICREFUSED ' .. command .. ' with more than ' .. MOST_ARGS .. ' arguments'}
	end
	return try(command, unpack(args, 2))
end

-- Effects have a bound, or a write would be executed here that no other zone can learn of: 4 GiB is what the length
-- of a packed string has room for. Arguments of a client are far below. A command that makes a key anew from other
-- keys is refused beyond half of it, before it runs.
local LARGEST = 2147483648

-- run_copy executes command, which copies keys, unless the keys among args take more than LARGEST, or the outbox is
-- full. Other arguments name no keys, mostly.
local function run_copy(command, args)
	local refusal = refuse_or_drop(true)
	if refusal then return refusal end
	local function size(...)
		local sum = 0
		for i = 2, #args do
			local n = try('MEMORY', 'USAGE', args[i], ...)
			if type(n) == 'number' then sum = sum + n end
		end
		return sum
	end
	if size() >= LARGEST / 4 then -- it looks at some elements of each key only
		local n = size('SAMPLES', '0')
		if n >= LARGEST then
			return {err = format('SONICREFUSED %s of keys that take %.0f bytes: the limit of an effect is %.0f', command, n, LARGEST)}
		end
	end
	return run(command, args)
end

-- run_sliced executes command key args[first..last], or without key, at most SLICE values at a time. It returns the
-- sum of the replies, or the last one when they are no numbers. A failure in a later slice would leave the slices
-- before it done: a command that can fail there is checked by its caller before.
local function run_sliced(command, key, args, first, last)
	if last - first < SLICE then
		if key then return try(command, key, unpack(args, first, last)) end
		return try(command, unpack(args, first, last))
	end
	local sum, reply = 0, nil
	for start = first, last, SLICE do
		local words = {unpack(args, start, math.min(start + SLICE - 1, last))}
		if key then table.insert(words, 1, key) end
		reply = try(command, unpack(words))
		if failed(reply) then return reply end
		if type(reply) == 'number' then sum = sum + reply end
	end
	return type(reply) == 'number' and sum or reply
end

-- What write was given, by command: body, and the options.
local commands = {}

-- write registers sonic_<command>. body(c, args, key, policy) runs the command: c is the context, args[1] is the
-- mode, the command's own arguments follow. key is the first of them, and policy is the policy of the key. The script
-- is in the database c.db and gets RESP2's replies. The body returns the reply, then the effects, nil when nothing
-- changed, and their versions.
--
-- With one zone the command just runs, unless options.special says that body does more for the reply. A counter key
-- is refused before body runs, unless options.counters says that body looks at the policies itself. options.last is the
-- last one of further keys, behind the first one in steps of options.step or 1: an index, or how far that is from the
-- last argument, 0 or negative. options.frees is for commands that Redis runs when it has reached its bound of memory:
-- they need none or free some.
local function write(command, body, options)
	options = options or {}
	local special, counters, last, step = options.special, options.counters, options.last, options.step or 1
	commands[command] = {body = body, special = special, counters = counters}
	redis.register_function{
		function_name = 'sonic_' .. command:lower(),
		flags = options.frees and {'allow-oom'} or {},
		callback = function(keys, args)
			if not c.ready then return NOT_READY end
			local out, mode = keys[1], args[1]
			c.outbox = out
			if c.clustered then
				local moving = shards.use(out)
				if moving then return moving end
			end
			local db, tx, published, resp3 = '0', nil, false, false
			if mode ~= '0' then
				db, tx, published, resp3 = mode_of(mode)
				if db ~= '0' then
					local reply = try('SELECT', db)
					if failed(reply) then return reply end
				end
			end
			c.tx, c.db, c.resp3 = tx, db, resp3
			if c.bytes > c.bound then
				local refusal = refuse_or_drop()
				if refusal then return refusal end
			end
			local reply, effects, versions
			if args[2] == nil then
				reply = try(command)
			elseif c.alone and not special and #args < SLICE then
				reply = try(command, unpack(args, 2))
			else
				local key = args[2]
				local policy = policy_of(key)
				if policy == 'c' and not counters then return counter_refusal(command) end
				if last then
					for i = 2 + step, last > 0 and math.min(last, #args) or #args + last, step do
						if policy_of(args[i]) == 'c' then return counter_refusal(command) end
					end
				end
				reply, effects, versions = body(c, args, key, policy)
			end
			local id = false
			if effects then
				if not c.alone then id = append(out, db, tx, effects, versions) end
			elseif failed(reply) then
				return as_client_error(command, reply)
			end
			if published then return {id, reply} end
			return reply
		end,
	}
end

-- each calls define with every item of list, or with both values of an item that is a pair. A library
-- that loads has no ipairs.
local function each(list, define)
	for i = 1, #list do
		local item = list[i]
		if item[1] then -- a string has no such field
			define(item[1], item[2])
		else
			define(item)
		end
	end
end

-- integer_text returns the text of an integer reply, nil when a Lua number may not hold it exactly: beyond 2^53. A
-- reply is given as a status then, of which the proxy makes the integer again.
local function integer_text(number)
	if number < 9007199254740992 and number > -9007199254740992 then return format('%d', number) end
	return nil
end

-- dump_state returns R of the string, list or stream that key holds now, D when there is none. It adds to
-- effects and versions, if given.
local function dump_state(db, key, effects, versions)
	local policy = policy_of(key)
	local pxat = expiry_of(key)
	local effect
	if pxat then
		effect = dump_effect(policy, db, key, call('DUMP', key), pxat)
	else
		effect = deletion_effect(policy, db, key)
	end
	return (effects or '') .. effect, wholesale_versions(policy, db, key, pxat or '', versions, pxat ~= nil)
end

-- removal_effect packs removed elements; pxat is what the key had before. A key that lost its last
-- element has lost its expiry, too: the effect says so under lww, for elsewhere it may have other elements.
local function removal_effect(op, policy, db, key, pxat, list, first, last, versions)
	local effects = elements_effect(op, policy, db, key, pxat, list, first, last)
	versions = removed_versions(policy, db, key, list, first, last, versions)
	if pxat ~= '' and policy == 'l' and call('EXISTS', key) == 0 then
		local cleared = is_over(pxat) and not c.alone and pxat or cleared_before(policy, db, key)
		effects = effects .. expiry_effect(policy, db, key, '', cleared)
		versions = expiry_versions(policy, db, key, '', versions, cleared)
	end
	return effects, versions
end

-- expiry_change returns the effects of a command that has changed when the key, which it left there, expires. before
-- is its expiry until then, cleared what cleared_before returned before that. No E under lww speaks of an expiry that
-- is over by the time of its version, see 50_versions.lua.
local function expiry_change(policy, db, key, before, pxat, cleared)
	if policy == 'l' and not c.alone then
		if is_over(pxat) then return deletion_effect(policy, db, key), wholesale_versions(policy, db, key, '') end
		if is_over(before) then return state_effects(db, key) end
	end
	return expiry_effect(policy, db, key, pxat, cleared), expiry_versions(policy, db, key, pxat, nil, cleared)
end

-- stored runs a command that makes key anew from other keys, or deletes it when there is nothing to store. Without key
-- the command only reads.
local function stored(command, args, key)
	if not key then return run(command, args) end
	if policy_of(key) == 'c' then return counter_refusal(command) end
	local before = call('EXISTS', key)
	local reply = run_copy(command, args)
	if failed(reply) or before == 0 and reply == 0 then return reply end
	return reply, state_effects(c.db, key)
end

-- store_key returns the key that an option STORE or STOREDIST of args[first..] names; the last one counts. takes has
-- how many arguments follow other options.
local function store_key(args, first, takes)
	local i, key = first, nil
	while i <= #args do
		local option = string.upper(args[i])
		if option == 'STORE' or option == 'STOREDIST' then
			i = i + 1
			key = args[i]
		end
		i = i + 1 + (takes[option] or 0)
	end
	return key
end

-- A string, list or stream that was there before is shipped as the operation that changed it, on the content that was
-- there: see 50_versions.lua. A new one is shipped as it is, and one that is gone as a deletion. So are strings that
-- were written as a whole, at their first operation.

local LENGTH = {string = 'STRLEN', list = 'LLEN', set = 'SCARD', hash = 'HLEN', zset = 'ZCARD', stream = 'XLEN'}

-- operation returns what command, with list[first..last] behind the key, has done to the string, list or stream key,
-- which was there before. It adds to effects and versions, if given. The command does the same whenever and wherever it
-- is executed on the same content.
local function operation(db, key, command, list, first, last, effects, versions)
	if c.alone then return nil end
	local policy, pxat = policy_of(key), expiry_of(key)
	local base
	if pxat then base = policy == 'n' and '' or base_of(db, key) end
	if not base then return dump_state(db, key, effects, versions) end
	local length = call(LENGTH[call('TYPE', key).ok], key)
	local effect = operation_effect(policy, db, key, base, pxat, DIGITS[length], command, list, first, last)
	return (effects or '') .. effect, wholesale_versions(policy, db, key, pxat, versions, true)
end

-- changed returns what command with args has done to the string key. there tells whether it was there before.
local function changed(there, db, key, command, args)
	if not there then return dump_state(db, key) end
	return operation(db, key, command, args, 3, #args)
end

-- copied returns what COPY has done, from the key from of database from_db, which is the script's, to the key to of
-- database db.
local function copied(from_db, from, db, to)
	if c.alone then return nil end
	local policy = policy_of(to)
	-- Under none this zone may copy what another zone writes: no version tells what that one has here.
	local base = policy == 'l' and base_of(from_db, from)
	call('SELECT', db)
	local kind, effects, versions = call('TYPE', to).ok, nil, nil
	if policy ~= policy_of(from) or not IN_PLACE[kind] then
		effects, versions = state_effects(db, to)
	elseif not base then
		effects, versions = dump_state(db, to)
	else
		local pxat, length = expiry_of(to), DIGITS[call(LENGTH[kind], to)]
		effects = operation_effect(policy, db, to, base, pxat, length, 'COPY', {from, from_db}, 1, 2)
		versions = wholesale_versions(policy, db, to, pxat, nil, true)
	end
	call('SELECT', from_db)
	return effects, versions
end
