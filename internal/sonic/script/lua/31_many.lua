
do -- what is local here is of this file alone: a function of Lua has at most 200 locals

-- Several writes in one call. Of what a short write costs Redis, a call and an entry of the outbox are the most.

-- Commands whose effects go into one entry, under one version: those on strings, which make S and I. To have them at
-- one moment is what MSET is, too. The others have an entry each.
local JOINED = {
	SET = true, SETEX = true, PSETEX = true, SETNX = true, INCR = true, DECR = true, INCRBY = true, DECRBY = true,
	INCRBYFLOAT = true,
}

-- HEADS[text] is what the head of a write says. There are few different ones.
local HEADS = {}

local function head_of(text)
	local command, n = string.match(text, '^(%u+) (%d)$')
	HEADS[text] = {
		command = command, n = tonumber(n), write = commands[command], joined = JOINED[command],
		plain = text == 'SET 2',
	}
	return HEADS[text]
end

-- How many SETs one MSET executes at most: unpack has a limit.
local MOST_SETS = SLICE / 2

-- sonic_many mode, and of each write a head and the arguments. The head is the command and the number of its
-- arguments, one digit. The mode has no t and no p. In a cluster each head is followed by the stream of the write's
-- slot. It returns the list of replies. An error of one write is its reply; the others run. All these commands need
-- memory: when there is none, Redis refuses the call as it would refuse each of them.
redis.register_function{
	function_name = 'sonic_many', flags = {'allow-cross-slot-keys'},
	callback = function(keys, args)
		if not c.ready then return NOT_READY end
		local out, mode = keys[1], args[1]
		c.outbox = out
		local db, resp3, _ = '0', false, nil
		if mode ~= '0' then
			db, _, _, resp3 = mode_of(mode)
			if db ~= '0' then
				local reply = try('SELECT', db)
				if failed(reply) then return reply end
			end
		end
		c.tx, c.db, c.resp3 = nil, db, resp3
		local refusal = refuse_or_drop()
		if refusal then return refusal end
		local replies, count = {}, 0
		local parts, n = {}, 0 -- effects that have no entry yet
		local versions, version_count = {}, 0
		local sets, values = {}, 0 -- keys and values of SETs that have not run: their replies are the last ones
		local prefix = key_field(db, '')
		local alone, policies, policy = c.alone, #c.policies > 0, c.default_policy

		-- run_sets executes the SETs that wait as one MSET, which costs less, and packs their effects.
		local function run_sets()
			local reply
			if values == 2 then
				reply = try('SET', sets[1], sets[2])
			elseif values > 0 then
				reply = try('MSET', unpack(sets, 1, values))
			end
			local first = count - values / 2
			for i = 1, values / 2 do replies[first + i] = reply end
			if not alone and not reply.err then
				for i = 1, values, 2 do
					local key, value = sets[i], sets[i + 1]
					if policies then policy = policy_of(key) end
					n = n + 1
					parts[n] = string_effect(policy, db, key, value, '')
					if policy == 'l' then
						version_count = version_count + 2
						versions[version_count - 1], versions[version_count] = prefix .. key, ''
					end
				end
			end
			values = 0
		end

		local function append_joined()
			if values > 0 then run_sets() end
			if n > 0 and not alone then append(out, db, nil, concat(parts, '', 1, n), versions) end
			n, versions, version_count = 0, {}, 0
		end

		-- execute runs another command with its arguments args[first..last].
		local function execute(head, first, last)
			if values > 0 then run_sets() end
			if alone and not head.write.special then return try(head.command, unpack(args, first, last)) end
			local key = args[first]
			local of_key = policy_of(key)
			if of_key == 'c' and not head.write.counters then return counter_refusal(head.command) end
			if not head.joined then append_joined() end
			local done, reply, effect, list = pcall(head.write.body, c, {mode, unpack(args, first, last)}, key, of_key)
			if done then return reply, effect, list end
			-- What it raised is one write's: those of the others must be stored all the same.
			try('SELECT', db)
			return type(reply) == 'table' and reply or {err = 'ERR ' .. tostring(reply)}
		end

		local i, last = 2, #args
		local moving
		while i <= last do
			local head = HEADS[args[i]] or head_of(args[i])
			if c.clustered then
				i = i + 1
				if args[i] ~= out or i == 3 then
					append_joined()
					out = args[i]
					moving = shards.use(out)
				end
			end
			local stop = i + head.n
			if head.plain and not moving and (policies and policy_of(args[i + 1]) or policy) ~= 'c' then
				count = count + 1
				sets[values + 1], sets[values + 2] = args[i + 1], args[i + 2]
				values = values + 2
				if values >= 2 * MOST_SETS then run_sets() end
			else
				local reply, effect, list = moving, nil, nil
				if not moving then reply, effect, list = execute(head, i + 1, stop) end
				if not effect then
					if failed(reply) then reply = as_client_error(head.command, reply) end
				elseif head.joined then
					n = n + 1
					parts[n] = effect
					for j = 1, list and #list or 0 do versions[version_count + j] = list[j] end
					version_count = version_count + (list and #list or 0)
				elseif not alone then
					append(out, db, nil, effect, list)
				end
				count = count + 1
				replies[count] = reply
			end
			i = stop + 1
		end
		append_joined()
		return replies
	end,
}

end
